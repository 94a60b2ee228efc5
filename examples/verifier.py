"""A verifier of one's own, for `reward.custom`."""


def score(completion: str, label: str, finish_reason: str) -> float | None:
    """How much of a list of keywords an answer mentions.

    Label: the keywords, with commas between them. Value: the share that the completion has, in any case; 0 where it was
    cut off.
    """
    keywords = [keyword.strip().lower() for keyword in label.split(",") if keyword.strip()]
    if not keywords:
        return None  # Nothing to judge by: UNSCORABLE, which is no 0.
    if finish_reason != "stop":
        return 0.0
    text = completion.lower()
    return sum(keyword in text for keyword in keywords) / len(keywords)
