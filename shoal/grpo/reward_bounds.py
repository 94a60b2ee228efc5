"""How large a reward may be."""

MAX_REWARD = 1e12
"""Largest magnitude of a reward: the squares of much larger ones, which advantages take, no float holds."""
