"""Shares what a run has learned, and its labels: `push` and `load`, in the layout of the Hugging Face Hub."""
