"""What other systems have and Shoal will have: the one table of it. A row goes when its feature comes."""

NOT_YET = {
    "judges": "judging by a language model or a reward model comes with the reward service's judges",
    "code execution": "verifying code by running it comes with the reward service's sandbox",
}
"""Feature -> what is said to whoever asks for it."""
