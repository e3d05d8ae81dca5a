"""Other implementations that the benchmark compares with, each in a virtual environment of its own."""
