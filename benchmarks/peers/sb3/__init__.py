"""Stable-Baselines3."""
