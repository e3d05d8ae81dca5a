"""Attacks on processes, files, flags and the label server; `python -m benchmarks.chaos` carries them out."""
