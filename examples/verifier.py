"""A custom verifier, for `reward.custom`."""


def score(completion: str, label: str, finish_reason: str) -> float | None:
    """Returns the share of a list of keywords that an answer mentions.

    Label: the keywords, separated by commas. Value: the share that occurs in the completion, in any case; 0 if it was
    cut off.
    """
    keywords = [keyword.strip().lower() for keyword in label.split(",") if keyword.strip()]
    if not keywords:
        return None  # Nothing to judge by: UNSCORABLE, which is not 0.
    if finish_reason != "stop":
        return 0.0
    text = completion.lower()
    return sum(keyword in text for keyword in keywords) / len(keywords)
