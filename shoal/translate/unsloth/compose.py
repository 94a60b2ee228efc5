"""Settings that Unsloth decides differently from TRL."""

import re
from typing import Any

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.field import text_list
from shoal.translate.sources.values import Unread
from shoal.translate.trl.batches import compose_context, compose_lengths
from shoal.translate.trl.compose import compose_all_but_lengths
from shoal.translate.trl.fields import FULL
from shoal.translate.unsloth.lora import compose_lora

_IN_4_BITS = re.compile(r"(-unsloth)?-bnb-4bit$", re.IGNORECASE)
"""The end of the names of Unsloth's quantized copies."""
_NEUTRAL = {"repetition_penalty": (1,), "presence_penalty": (0,), "frequency_penalty": (0,)}
_SAMPLING = ("temperature", "top_p", "min_p")
_NOT_OF_SAMPLING = ("include_stop_str_in_output", "seed", "max_tokens", "n", "logprobs", "skip_special_tokens")
_PROMPT_SHARE = 4
"""The divisor of `max_seq_length` that gives the length of prompts if only a run could measure the prompts."""


def _sampling(source: Source, draft: Draft) -> None:
    """Sets the fields of `vllm_sampling_params`, which take precedence over GRPOConfig."""
    name = "vllm_sampling_params"
    for key, value in (source[name] or {}).items():
        if key in _NOT_OF_SAMPLING or value in _NEUTRAL.get(key, ()):
            continue
        if key in _SAMPLING and isinstance(value, int | float):
            draft.set(f"sampling.{key}", value, source.origin(name))
        elif key == "top_k" and isinstance(value, int):
            draft.set("sampling.top_k", max(0, value), source.origin(name))
        elif key == "stop" and isinstance(value, str | list):
            draft.set("sampling.stop_strings", text_list(value), source.origin(name))
        elif key == "stop" and isinstance(value, Unread) and value.text.strip("[]").endswith(".eos_token"):
            draft.notes.append(f"{name}: completions always end at the end-of-sequence token")
        elif isinstance(value, Unread):
            draft.refuse(name, f"{key} = {value.text}", "cannot be read without running the file: write the value")
        else:
            reason = FULL if key in _NEUTRAL else f"Shoal supports only stop, top_k, {', '.join(_SAMPLING)}"
            draft.refuse(name, f"{key} = {value}", reason)


def compose(source: Source, draft: Draft) -> None:
    """Sets the fields as for TRL, with Unsloth's rules, and then Unsloth's own fields."""
    ruled, size = _UnslothSource(source), "per_device_train_batch_size"
    if ruled[size] != source[size]:
        draft.notes.append(
            f"{size} = {source[size]}: Unsloth raises it to num_generations ({ruled[size]}), since a generation batch "
            "must consist of whole groups"
        )
    compose_all_but_lengths(ruled, draft)
    _whole_model(source, draft)
    _sampling(source, draft)
    compose_lora(source, draft)
    is_dapo = source.is_set("loss_type") and source["loss_type"] == "dapo"
    if is_dapo and not source.is_set("mask_truncated_completions"):
        draft.set("grpo.mask_truncated_completions", True, source.origin("loss_type"))
    _lengths(source, draft)


def _whole_model(source: Source, draft: Draft) -> None:
    """Uses the original of the 4-bit copy that the source names, since the learner itself quantizes the model."""
    path = draft.values.get("model.path") or ""
    whole = _IN_4_BITS.sub("", path)
    if whole != path:
        draft.set("model.path", whole, source.origin("model_name_or_path"))
        draft.notes.append(f"model.path = {whole}: {path} is a 4-bit copy of it; the learner quantizes the original")


def _lengths(source: Source, draft: Draft) -> None:
    """Sets the lengths of prompts and completions, which share `max_seq_length` if the file measures its prompts."""
    length, measured = source["max_seq_length"], source.measured
    names = ("max_prompt_length", "max_completion_length")
    if length is None:
        for name in (name for name in names if name in measured):
            source.miss(name, measured[name])
        compose_lengths(source, draft)
        return
    if names[1] not in measured:
        if not source.is_set(names[0]):
            prompt = max(1, length - source[names[1]])
            draft.set("data.max_prompt_tokens", prompt, source.origin("max_seq_length", names[1]))
    else:
        prompt = source[names[0]] or max(1, length // _PROMPT_SHARE)
        draft.set("data.max_prompt_tokens", prompt, source.origin("max_seq_length"))
        draft.set("sampling.max_completion_tokens", max(1, length - prompt), source.origin("max_seq_length"))
    compose_context(source, draft, "max_seq_length")
    if measured:
        draft.notes.append(
            f"{' and '.join(measured)}: the file measures its prompts when it runs. Here prompts have at most "
            f"{draft.values['data.max_prompt_tokens']} tokens (longer prompts are left out), and completions at most "
            f"{draft.values['sampling.max_completion_tokens']}, which share max_seq_length ({length}): set "
            "data.max_prompt_tokens and sampling.max_completion_tokens to the lengths that the file prints"
        )


_BY_LOSS: dict[tuple[str, object], object] = {("epsilon_high", "dapo"): 0.28, ("epsilon_high", "cispo"): 5.0}


class _UnslothSource(Source):
    """Fields with Unsloth's rules for missing fields."""

    def __init__(self, source: Source) -> None:
        self.__dict__ = source.__dict__

    def __getitem__(self, name: str) -> object:
        value = super().__getitem__(name)
        if name == "loss_type":
            return value or "dapo"
        if name == "beta" and value is None:
            return 0.0 if self["loss_type"] in ("dapo", "dr_grpo") else 0.001
        if name == "per_device_train_batch_size" and self._cuts_groups(value):
            return super().__getitem__("num_generations")
        if name == "scale_rewards" and self["loss_type"] == "dr_grpo" and value in (True, "group"):
            return "none"
        if self.is_set("loss_type") and not self.is_set(name):
            # If the source names the loss, Unsloth follows the papers.
            return _BY_LOSS.get((name, super().__getitem__("loss_type")), value)
        return value

    def _cuts_groups(self, device: Any) -> bool:
        """Returns whether a generation batch would split a group. In this case Unsloth takes one group per device."""
        if self.is_set("generation_batch_size") or self.is_set("steps_per_generation"):
            return False
        names = ("gradient_accumulation_steps", "num_processes", "num_generations")
        accumulation, processes, generations = (max(1, super(_UnslothSource, self).__getitem__(name)) for name in names)
        return bool(device * accumulation * processes % generations)
