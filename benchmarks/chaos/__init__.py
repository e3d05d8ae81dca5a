"""Attacks on processes, files, flags and the label server; `python -m benchmarks.chaos` carries them out."""

import os

# Read when PyTorch is imported. Several runs share the cores, where a thread that waits should leave them to others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
