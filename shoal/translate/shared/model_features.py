"""Models that cannot be trained yet, by their names: sources have no other information about images or experts."""

import re

from shoal.translate.shared.draft import Draft
from shoal.translate.shared.not_yet import NOT_YET

_FEATURES = {
    "vision": re.compile(
        r"(^|[-_/.\d])(vl|vision|omni|llava|idefics\d?|smolvlm\d?)([-_.\d]|$)|internvl|minicpm-?(v|o)\b|pixtral"
        r"|ministral-3-|glm-?4[._]?[15]v|qwen-?3\.[5-9]|mistral-small-3|gemma-?3n|gemma-?3-(4|12|27)b|gemma-?4",
        re.IGNORECASE,
    ),
    "mixture of experts": re.compile(
        r"-a\d+(\.\d+)?b\b|mixtral|(^|[-_/\d])moe([-_/.\d]|$)|gpt-?oss|moonlight|deepseek-?(v[2-9]|r1-?(0528|zero)?$)"
        r"|olmoe|kimi[-_]?k\d|longcat-?flash|glm-?(4\.[5-9]|[5-9](\.\d)?(-|$))|llama-?4|minimax-?m\d",
        re.IGNORECASE,
    ),
}
"""Feature -> the families of models that need it."""


def refuse_model_features(field: str, draft: Draft) -> None:
    """Refuses the model in `field` of the source if its name shows a feature that is not yet available."""
    path = draft.values.get("model.path") or ""
    for feature, names in _FEATURES.items():
        if names.search(path):
            draft.refuse(field, path, f"not yet available: {NOT_YET[feature]}", cure="model.path")
