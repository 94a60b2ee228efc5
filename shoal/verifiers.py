"""The names of the verifiers, for those who check data and must not import what judges it.

They are the labels of the data's verifier column, open-instruct's among them. `services/reward/registry.py` holds
what is behind each name; a test compares the two. Packages and configurations bring others (docs/rewards.md).
"""

import importlib.metadata

JUDGE_VERIFIERS = frozenset(
    {
        "general-creative_writing",
        "general-factuality",
        "general-quality",
        "general-quality_ref",
        "general-quality_rubric",
        "general-refusal",
        "general-safety",
        "general-web_instruct_general_verifier",
        "llm_judge",
        "rubric",
    }
)
"""Those that ask a language model, so they need `reward.judge`; `services/reward/judge/labels.py` has them."""

MODEL_VERIFIERS = frozenset({"reward_model"})
"""Those that a reward model scores, so they need `reward.model`."""

UNLABELED_VERIFIERS = MODEL_VERIFIERS | {"general-quality", "general-safety"}
"""Those that read no label, so that data may have none for them."""

_BY_RULE = frozenset(
    {
        "code",
        "code_stdio",
        "exact_string",
        "flan",
        "gsm8k",
        "ifeval",
        "ifeval_old",
        "json_schema",
        "language",
        "math",
        "max_length",
        "multiple_choice",
        "passthrough",
        "puzzle",
        "r1_format",
        "re_search",
        "re_search_f1",
        "reasoning_gym",
        "regex",
        "repetition_penalty",
        "soft_overlong",
        "strict_math",
        "string_f1",
        "string_matcher",
        "think_format",
        "up_to_max_length",
    }
)

BUILT_IN_VERIFIERS = _BY_RULE | JUDGE_VERIFIERS | MODEL_VERIFIERS

ENTRY_POINT_GROUP = "shoal.verifiers"
"""Where installed packages register verifiers: the entry point's name is the verifier's."""


def installed_verifiers() -> frozenset[str]:
    """Names of the verifiers that packages on this machine bring."""
    return frozenset(point.name.lower() for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))
