"""What other systems have and Shoal will have: the one table of it. A row goes when its feature comes."""

NOT_YET = {
    "reward composition": (
        "rewards made of several parts (format reward, penalties, thresholds, remapped labels) come with the reward "
        "service's composition; until then a reward is the sum of its verifiers' scores"
    ),
    "judges": "judging by a language model or a reward model comes with the reward service's judges",
    "code execution": "verifying code by running it comes with the reward service's sandbox",
}
"""Feature -> what is said to whoever asks for it."""
