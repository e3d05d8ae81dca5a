"""Measurements: `speed` of the parts and of whole runs, and `learning` from labels; and attacks: `chaos`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
