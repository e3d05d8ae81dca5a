"""The imitation library."""
