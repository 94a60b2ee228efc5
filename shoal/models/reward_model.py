"""Descriptions and tokenizers of reward models, read from their files without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.chat_templates import template_text
from shoal.chat_templates.rendering import Dialogue, Unrendered, render_texts
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument
from shoal.models.model_folder import check_own_method, read_json, resolve_model, tokenizer_in

_PATH, _TEMPLATE = "reward.model.path", "reward.model.chat_template"
_HEAD = "ForSequenceClassification"
# Tokenizers without a limit report a huge meaningless number.
_MAX_TOKENS = 1 << 30
_LABELS_OF_TRANSFORMERS = 2
_TRIAL = ({"role": "user", "content": "A question"}, {"role": "assistant", "content": "An answer"})


@dataclass(frozen=True)
class RewardModelDescription:
    """The properties of a reward model that are known before its weights are read."""

    folder: Path
    num_labels: int
    label: int
    """Index of the label that is the reward."""
    max_length_tokens: int
    """Maximum length of an input, in tokens."""
    tokenizer: Any
    """The tokenizer, with the chat template to use."""


def describe_reward_model(config: RewardModelConfig, *, weights: bool = True) -> RewardModelDescription:
    """Finds or downloads the model of `reward.model.path`, and reads everything but its weights.

    Raises `InvalidArgument` if the model, its classification head, the reward's label or a chat template is missing.
    """
    folder = resolve_model(config.path, config.revision, weights=weights, field=_PATH)
    values = read_json(folder / "config.json", field=_PATH)
    architectures = values.get("architectures") or []
    if not any(str(name).endswith(_HEAD) for name in architectures):
        raise InvalidArgument(
            f"{_PATH}: {config.path} is "
            f"{', '.join(map(str, architectures)) or 'a model without a named architecture'}, which has no trained "
            f"scoring head; give a model whose architecture ends in {_HEAD}"
        )
    names = _label_names(values)
    label = paying_label(config, len(names), names)
    tokenizer = _tokenizer(config, folder)
    return RewardModelDescription(folder, len(names), label, _longest(config, values, tokenizer), tokenizer)


def _label_names(values: Mapping[str, Any]) -> list[str]:
    names = values.get("id2label")
    if isinstance(names, Mapping) and names:
        return [str(names[key]) for key in sorted(names, key=int)]
    count = values.get("num_labels", _LABELS_OF_TRANSFORMERS)
    return [f"LABEL_{number}" for number in range(count)]


def paying_label(config: RewardModelConfig, num_labels: int, names: Sequence[str] = ()) -> int:
    """Returns the index of the label that is the reward. Raises `InvalidArgument` if settings and labels conflict."""
    known = f"{num_labels} labels" + (f": {', '.join(names)}" if names else "")
    if config.label is None and num_labels > 1:
        raise InvalidArgument(
            f"reward.model.label is unset, and the model has {known}; name the label that is the reward"
        )
    label = 0 if config.label is None else config.label
    if isinstance(label, str):
        if label not in names:
            raise InvalidArgument(f"reward.model.label: the model has no label {label!r}; it has {known}")
        label = names.index(label)
    if label >= num_labels:
        raise InvalidArgument(
            f"reward.model.label: {label} is beyond the model's {known}; give 0 to {num_labels - 1}, or leave the "
            "field unset"
        )
    if config.value == "softmax" and num_labels == 1:
        raise InvalidArgument("reward.model.value: softmax over a single label is always 1; use logit or sigmoid")
    return label


def _tokenizer(config: RewardModelConfig, folder: Path) -> Any:
    tokenizer = tokenizer_in(folder, _PATH, trust_remote_code=config.trust_remote_code)
    check_own_method(tokenizer, config.chat_template, _TEMPLATE)
    if config.chat_template is not None:
        tokenizer.chat_template = template_text(config.chat_template, _TEMPLATE)
    if not tokenizer.chat_template:
        raise InvalidArgument(
            f"{_TEMPLATE} is unset, and the tokenizer of {config.path} has no chat template; name the "
            'template that the model was trained with, for example "chatml", or "simple" for the bare '
            "messages, one per line"
        )
    (text,) = rendered(tokenizer, [_TRIAL])
    if isinstance(text, Unrendered):
        raise InvalidArgument(f"{_TEMPLATE}: for a question and its answer, the template {text.why}")
    _check_special_tokens(config, tokenizer, text)
    return tokenizer


def _check_special_tokens(config: RewardModelConfig, tokenizer: Any, text: str) -> None:
    """Refuses settings with which an input would lack the classification token, or contain its beginning twice."""
    token_ids = tokenizer(text, add_special_tokens=config.add_special_tokens)["input_ids"]
    wanted = tokenizer("", add_special_tokens=True)["input_ids"][:1]
    if tokenizer.cls_token_id in wanted and token_ids[:1] != wanted:
        raise InvalidArgument(
            f"reward.model.add_special_tokens is false, but inputs of {config.path} begin with {tokenizer.cls_token}, "
            "which the chat template does not write; set the field to true"
        )
    if config.add_special_tokens and wanted and token_ids[:2] == wanted * 2:
        raise InvalidArgument(
            f"reward.model.add_special_tokens is true, but the chat template writes {tokenizer.decode(wanted)} itself, "
            "so these tokens would appear twice; set the field to false"
        )


def _longest(config: RewardModelConfig, values: Mapping[str, Any], tokenizer: Any) -> int:
    part = values.get("text_config")
    text = {**values, **(part if isinstance(part, Mapping) else {})}
    limits = [text.get("max_position_embeddings"), tokenizer.model_max_length]
    known = [int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit < _MAX_TOKENS]
    if not known and config.max_length_tokens is None:
        raise InvalidArgument(
            f"reward.model.max_length_tokens is unset, and the files of {config.path} give no maximum length; set this "
            "field"
        )
    if known and (config.max_length_tokens or 0) > min(known):
        raise InvalidArgument(
            f"reward.model.max_length_tokens: {config.max_length_tokens} exceeds the {min(known)} tokens that "
            f"{config.path} supports; lower the field, or leave it unset"
        )
    return config.max_length_tokens or min(known)


def rendered(tokenizer: Any, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[str | Unrendered]:
    """Renders conversations that end with an answer as the model sees them, each independently of the others."""
    outcomes: list[str | Unrendered] = []
    while rest := conversations[len(outcomes) :]:
        outcomes += render_texts(tokenizer, [Dialogue(messages, begins_turn=False) for messages in rest], {})
    return outcomes
