"""`shoal config show`, `check` and `translate`."""

import importlib.util
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.coordinator.cli.output import Output
from services.coordinator.cli.tables import print_json, print_pairs
from shoal.config import RunConfig, dump_config, load_config
from shoal.config.derived import derived_values
from shoal.config.load import config_digest
from shoal.errors import InvalidArgument

if TYPE_CHECKING:
    from services.coordinator.preflight import PreparedInputs

_MANY_LABELS = 10_000
"""Takes long enough to say so."""


def show(path: Path, overrides: Sequence[str], *, output: Output) -> None:
    """Prints every field of the resolved configuration, then what follows from them."""
    config = load_config(path, overrides)
    values, derived = dump_config(config), asdict(derived_values(config))
    if output == "json":
        print_json({**values, "derived": derived})
    else:
        print("\n".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in flatten(values)))
        print("# derived, not to be set:")
        print("\n".join(f"# {name}={json.dumps(value)}" for name, value in derived.items()))


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and their values; places in lists are numbers."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None or not value:
        yield prefix, value
        return
    for key, item in items:
        yield from flatten(item, f"{prefix}.{key}" if prefix else str(key))


def check(path: Path, overrides: Sequence[str], *, deep: bool, output: Output) -> None:
    """Checks a configuration; `deep` loads tokenizer and data as well. Prints what it amounts to.

    Raises `InvalidArgument` that names the field at fault.
    """
    config = load_config(path, overrides)
    derived = derived_values(config)
    facts: dict[str, Any] = {
        "config": str(path),
        "digest": config_digest(config),
        "train_steps": derived.train_steps,
        "completions_per_step": derived.completions_per_step,
        "optimizer_steps_per_step": derived.optimizer_steps_per_step,
        "max_sequence_tokens": derived.max_sequence_tokens,
    }
    if deep:
        from services.coordinator.preflight import check_weights, preflight

        inputs = preflight(config)
        labels, unusable = _looked_at(config, inputs)
        prompts = [prompt for prompt in inputs.prompts.prompts if prompt.prompt_id not in unusable]
        held_out = [prompt for prompt in inputs.evaluation_prompts if prompt.prompt_id not in unusable]
        facts |= {
            "prompts": len(prompts),
            "prompts_dropped_too_long": inputs.prompts.num_dropped_too_long,
            "labels_looked_at": labels,
            "prompts_left_out_for_labels": len(inputs.prompts.prompts) - len(prompts),
            "longest_prompt_tokens": max(len(prompt.token_ids) for prompt in prompts),
            "held_out_prompts": len(held_out),
            "held_out_prompts_left_out_for_labels": len(inputs.evaluation_prompts) - len(held_out),
            "stop_token_ids": list(inputs.stop_token_ids),
            "passes_over_the_data": round(config.run.num_steps * config.grpo.groups_per_step / len(prompts), 3),
            "model_folder": str(check_weights(config)),
            **_own_verifiers(config, inputs.verifiers_to_ask_for),
        }
        if config.reward.model.path:
            from shoal.reward_model import describe_reward_model

            model = describe_reward_model(config.reward.model, weights=False)
            facts |= {"reward_model_folder": str(model.folder), "reward_model_max_tokens": model.max_length_tokens}
    if output == "json":
        print_json(facts)
    else:
        print_pairs([(name.replace("_", " "), str(value)) for name, value in facts.items()])
        print("the configuration is valid" + ("" if deep else "; --deep also loads tokenizer, data and labels"))


def _looked_at(config: RunConfig, inputs: "PreparedInputs") -> tuple[int | str, Collection[str]]:
    """How many labels were looked at, or why none was; and the prompts that are left out because of theirs.

    Raises `InvalidArgument` where `data.malformed_labels` refuses them.
    """
    from services.coordinator.cli.rewards import ask_reward
    from services.coordinator.labels import Labels, left_out

    if config.data.malformed_labels == "keep":
        return "none, since data.malformed_labels is keep", ()
    if importlib.util.find_spec("math_verify") is None:
        return "none here, without shoal[reward]; a run looks at them when it starts", ()
    prompts, questions = inputs.prompts.prompts, inputs.evaluation_prompts
    labels = Labels((*prompts, *questions))
    asked = [[truth.verifier, truth.label] for truth in labels.distinct]
    if len(asked) >= _MANY_LABELS:
        print(
            f"note: verifiers look at {len(asked)} labels; data.malformed_labels=keep leaves that out", file=sys.stderr
        )
    problems = ask_reward("check", {"config": dump_config(config), "labels": asked})
    malformed = labels.malformed(problems)
    for said, _ in left_out(config.data, malformed, prompts, questions):
        print(f"note: {said}", file=sys.stderr)
    return len(labels.distinct), {label.prompt_id for label in malformed}


def _own_verifiers(config: RunConfig, to_ask_for: Sequence[str]) -> dict[str, Any]:
    """What can be told here of verifiers that do not come with Shoal, and what cannot."""
    from services.coordinator.cli.rewards import ask_reward

    facts: dict[str, Any] = {}
    if config.reward.custom:
        checked = ask_reward("try", {"config": dump_config(config)})
        facts["custom_verifiers"] = {name: digest[:12] for name, digest in checked["digests"].items()}
        if checked["elsewhere"]:
            facts["custom_verifiers_not_on_this_machine"] = checked["elsewhere"]
    if config.reward.servers:
        facts["reward_servers_not_asked"] = [server.address for server in config.reward.servers.values()]
    if to_ask_for:
        facts["verifiers_not_known_before_the_run_starts"] = list(to_ask_for)
    return facts


def translate(system: str, source: Sequence[str], overrides: Sequence[str], skip: Sequence[str]) -> None:
    """Prints another system's configuration as ours, and on standard error what was noted and refused.

    Raises `InvalidArgument` when something refused stands in the way; nothing is printed then.
    """
    from shoal.config.translate import SYSTEMS, translate_arguments

    if system not in SYSTEMS:
        raise InvalidArgument(f"--from {system!r}: known are {', '.join(SYSTEMS)}")
    if not source:
        raise InvalidArgument("give a file (.sh, .yaml, .json, .py), or the settings themselves behind --")
    translation = translate_arguments(system, source, skip=skip, overrides=overrides)
    for note in translation.notes:
        print(f"note: {note}", file=sys.stderr)
    for refusal in translation.refusals:
        left_out = not refusal.blocks or refusal.name in translation.skipped
        print(f"{'left out' if left_out else 'refused'}: {refusal}", file=sys.stderr)
    if translation.blocking:
        names = ", ".join(dict.fromkeys(refusal.name for refusal in translation.blocking))
        raise InvalidArgument(
            f"not translated, because of {names}; change the source, answer with --set, or leave them out with "
            "--skip NAME (or --skip all)"
        )
    print(translation.toml, end="")
