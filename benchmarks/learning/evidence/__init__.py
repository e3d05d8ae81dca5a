"""Keeps what runs came to in results/, one folder for each experiment, and makes the pages' tables of it."""
