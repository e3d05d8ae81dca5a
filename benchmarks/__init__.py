"""Measurements: `speed` of the parts and of whole runs, and `learning` from labels."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
