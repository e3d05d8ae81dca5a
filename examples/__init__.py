"""Examples: custom teachers for `run.py`, and programs that use the wrapper."""
