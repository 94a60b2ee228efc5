"""What other systems have and Shoal will have: the one table of it. A row goes when its feature comes."""

NOT_YET = {
    "reward models": "scoring by a reward model comes with the reward service's reward models",
    "code execution": "verifying code by running it comes with the reward service's sandbox",
}
"""Feature -> what is said to whoever asks for it."""
