"""What several tests use."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
