"""`shoal config show` and `shoal config check`."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.coordinator.cli.tables import print_json, print_pairs
from shoal.config import dump_config, load_config
from shoal.config.load import config_digest

if TYPE_CHECKING:
    from services.coordinator.cli.app import Output


def show(path: Path, overrides: Sequence[str], *, output: "Output") -> None:
    """Prints every field of the resolved configuration."""
    values = dump_config(load_config(path, overrides))
    if output == "json":
        print_json(values)
    else:
        print("\n".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in flatten(values)))


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and their values; places in lists are numbers."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None or not value:
        yield prefix, value
        return
    for key, item in items:
        yield from flatten(item, f"{prefix}.{key}" if prefix else str(key))


def check(path: Path, overrides: Sequence[str], *, deep: bool, output: "Output") -> None:
    """Checks a configuration; `deep` loads tokenizer and data as well. Prints what it amounts to.

    Raises `InvalidArgument` that names the field at fault.
    """
    config = load_config(path, overrides)
    facts: dict[str, Any] = {
        "config": str(path),
        "digest": config_digest(config),
        "train_steps": config.run.num_steps,
        "completions_per_step": config.grpo.groups_per_step * config.grpo.group_size,
        "optimizer_steps_per_step": config.grpo.num_epochs * config.grpo.num_mini_batches,
        "max_sequence_tokens": config.max_sequence_tokens,
    }
    if deep:
        from services.coordinator.preflight import check_weights, preflight

        inputs = preflight(config)
        facts |= {
            "prompts": len(inputs.prompts.prompts),
            "prompts_dropped_too_long": inputs.prompts.num_dropped_too_long,
            "longest_prompt_tokens": max(len(prompt.token_ids) for prompt in inputs.prompts.prompts),
            "held_out_prompts": len(inputs.evaluation_prompts),
            "stop_token_ids": list(inputs.stop_token_ids),
            "passes_over_the_data": round(
                config.run.num_steps * config.grpo.groups_per_step / len(inputs.prompts.prompts), 3
            ),
            "model_folder": str(check_weights(config)),
        }
    if output == "json":
        print_json(facts)
    else:
        print_pairs([(name.replace("_", " "), str(value)) for name, value in facts.items()])
        print("the configuration is valid" + ("" if deep else "; --deep also loads tokenizer and data"))
