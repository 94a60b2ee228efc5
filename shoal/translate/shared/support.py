"""The tokens to sample from, if a source restricts them without a top-k."""

from shoal.config.tables.sampling import MAX_TOP_K
from shoal.translate.shared.draft import Draft, Origin


def bound_support(draft: Draft) -> None:
    """Sets `sampling.top_k` if top-p or min-p exclude tokens and the source has no top-k; notes the difference.

    The learner normalizes over the tokens that each token was drawn from, and top-k bounds their number.
    """
    top_p, min_p = draft.values.get("sampling.top_p") or 1.0, draft.values.get("sampling.min_p") or 0.0
    if draft.values.get("sampling.top_k"):
        draft.notes.append(
            f"{draft.origins['sampling.top_k']}: the learner normalizes over the tokens that were kept, not over all: "
            "so the importance ratio has no bias"
        )
        return
    if top_p >= 1 and min_p <= 0:
        return
    names = [name for name, is_on in (("sampling.top_p", top_p < 1), ("sampling.min_p", min_p > 0)) if is_on]
    origin = " and ".join(dict.fromkeys(draft.origins[name] for name in names))
    draft.set("sampling.top_k", MAX_TOP_K, Origin(origin, any(name in draft.explicit for name in names)))
    exact = f"; min_p alone leaves no more wherever some token has {1 / MAX_TOP_K / min_p:.2g} or more" if min_p else ""
    draft.notes.append(
        f"{origin}: tokens are drawn from at most the {MAX_TOP_K} likeliest, since the learner normalizes over the "
        "tokens that each one was drawn from, and sampling.top_k bounds their number; fewer cost less. The importance "
        f"ratio has no bias; in a very flat distribution the tokens beyond are never drawn{exact}"
    )
