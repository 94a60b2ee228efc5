"""Notes on the prompts of a run, about effects of a chat template that may be unintended."""

from collections.abc import Collection, Sequence
from typing import Any

from shoal.chat_templates.probes import writes_time
from shoal.chat_templates.rendering import Dialogue
from shoal.chat_templates.template_messages import for_template
from shoal.config.tables.model import ModelConfig
from shoal.rollout import Prompt


def notes_on_prompts(
    model: ModelConfig, tokenizer: Any, prompts: Sequence[Prompt], left_out: Collection[str] = ()
) -> tuple[str, ...]:
    """Returns notes on prompts without the token with which the tokenizer begins any text, on a template that writes
    the time, and on ignored fields of messages."""
    notes = (_missing_bos(tokenizer, prompts), _clock(model, tokenizer, prompts[0]), _fields(left_out))
    return tuple(filter(None, notes))


def _fields(left_out: Collection[str]) -> str:
    if not left_out:
        return ""
    names = ", ".join(sorted(left_out))
    return f"messages in the data have fields that the chat template does not read, so no prompt has them: {names}"


def _missing_bos(tokenizer: Any, prompts: Sequence[Prompt]) -> str:
    bos = tokenizer.bos_token_id
    if bos is None or tokenizer("x")["input_ids"][:1] != [bos]:
        return ""
    without = sum(1 for prompt in prompts if prompt.token_ids[0] != bos)
    if not without:
        return ""
    return (
        f"{without} of {len(prompts)} prompts do not begin with {tokenizer.bos_token}, with which the tokenizer begins "
        "any text, and most such models answer badly without it: let the chat template (model.chat_template, else the "
        "tokenizer's own) begin with {{ bos_token }}"
    )


def _clock(model: ModelConfig, tokenizer: Any, prompt: Prompt) -> str:
    dialogue = Dialogue([for_template(message) for message in prompt.messages], begins_turn=True)
    if not writes_time(tokenizer, model.chat_template_kwargs, dialogue):
        return ""
    return (
        "the chat template writes the time (strftime_now): all prompts of a run have the time at which it was started, "
        "also once it is resumed; whoever uses the model later has another one"
    )
