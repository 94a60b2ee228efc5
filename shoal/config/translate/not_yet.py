"""What other systems have and Shoal will have: the one table of it. A row goes when its feature comes."""

NOT_YET: dict[str, str] = {}
"""Feature -> what is said to whoever asks for it."""
