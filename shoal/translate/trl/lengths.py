"""Lengths of prompts and completions, and the context that holds both."""

from shoal.config.tables.data import DataConfig
from shoal.translate.shared.draft import Draft, Source

_MOST = int(DataConfig.model_fields["max_prompt_tokens"].default)


def compose_lengths(source: Source, draft: Draft) -> None:
    """Sets the length of prompts if TRL has no limit, and the context if prompts and completions fit into it."""
    given, context = source["max_prompt_length"], source["vllm_max_model_length"]
    if given is not None:
        draft.notes.append(
            f"max_prompt_length = {given}: prompts that are longer are left out; TRL before 1.0 cut off their beginning"
        )
    elif context is not None:
        prompt = max(1, min(_MOST, context - source["max_completion_length"]))
        draft.set("data.max_prompt_tokens", prompt, source.origin("vllm_max_model_length", "max_completion_length"))
    else:
        draft.notes.append(
            f"max_prompt_length: TRL takes prompts of any length; here those of more than {_MOST} tokens are left out: "
            "data.max_prompt_tokens"
        )
    if context is not None:
        set_context(source, draft, "vllm_max_model_length")


def set_context(source: Source, draft: Draft, name: str) -> None:
    """Sets the engine's context from a field, unless it would cut completions off before their own limit."""
    context = source[name]
    prompt, completion = draft.values["data.max_prompt_tokens"] or _MOST, draft.values["sampling.max_completion_tokens"]
    fits = prompt + completion <= context
    draft.set("generator.max_model_len", context if fits else None, source.origin(name))
    if not fits:
        draft.notes.append(
            f"{source.origin(name).text} would cut off completions before {prompt} + {completion} tokens; here they "
            "have their whole length: sampling.max_completion_tokens shortens them"
        )
