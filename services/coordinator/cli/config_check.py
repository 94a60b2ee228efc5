"""The facts that `shoal config check` prints: sizes of a run and, with --deep, its data, labels, and verifiers."""

import importlib.util
import sys
from collections.abc import Collection, Sequence
from typing import Any

from services.coordinator.cli.env.requests import ask_environment_servers, check_environments
from services.coordinator.cli.reward_process import call_reward_process, check_custom_verifiers, check_reward_servers
from services.coordinator.reporting.trackers.wandb import wandb_login_problem
from services.coordinator.run.checks.environment_check import check_tools_of_rows, missing_tools, unwritten_tools
from services.coordinator.run.checks.label_check import Labels, left_out
from services.coordinator.run.checks.preflight import PreparedInputs, check_adapted_layers, check_weights, preflight
from shoal.config import RunConfig, dump_config
from shoal.config.epochs import with_counted_steps
from shoal.config.load import config_digest
from shoal.errors import FailedPrecondition, InvalidArgument
from shoal.models.reward_model import describe_reward_model
from shoal.rollout import Prompt

_MANY_LABELS = 10_000
"""Number of labels from which the check takes long enough for a note."""


def counted(config: RunConfig) -> RunConfig:
    """Computes an unset `run.num_steps` from `run.total_epochs` and the data. Returns the configuration with it.

    If the data cannot be loaded, warns and returns the configuration unchanged.
    """
    if config.run.num_steps:
        return config
    try:
        return with_counted_steps(config, len(preflight(config).prompts))
    except (InvalidArgument, FailedPrecondition) as error:
        print(f"warning: run.num_steps is unknown, since the data cannot be loaded: {error}", file=sys.stderr)
        return config


def check_config(config: RunConfig) -> dict[str, Any]:
    """Computes the sizes that follow from a configuration."""
    return {
        "digest": config_digest(config),
        "train_steps": config.run.num_steps or f"{config.run.total_epochs:g} epochs; --deep counts the prompts",
        "completions_per_step": config.grpo.completions_per_step,
        "optimizer_steps_per_step": config.grpo.optimizer_steps_per_step,
        "max_sequence_tokens": config.max_sequence_tokens,
    }


def check_inputs(config: RunConfig) -> tuple[RunConfig, dict[str, Any]]:
    """Loads tokenizer and data, and checks labels, custom verifiers, environments and adapted layers.

    Looks for the model's weights. Sends one request to every server that a run needs, including Weights & Biases.
    Returns the configuration with its number of steps, and the facts. Raises `InvalidArgument`, whose message names the
    field at fault.
    """
    inputs = preflight(config)
    config = with_counted_steps(config, len(inputs.prompts))
    for note in inputs.notes:
        print(f"note: {note}", file=sys.stderr)
    model_folder = check_weights(config)
    if note := check_adapted_layers(config, model_folder):
        print(f"note: {note}", file=sys.stderr)
    num_labels, unusable = _check_labels(config, inputs)
    prompts = [prompt for prompt in inputs.prompts.prompts if prompt.prompt_id not in unusable]
    held_out = inputs.held_out.without("malformed_label", unusable)
    if held_out.lacks_questions:
        print(f"note: {held_out}", file=sys.stderr)
    facts = {
        "train_steps": config.run.num_steps,
        "prompts": len(prompts),
        "prompts_dropped_too_long": inputs.prompts.num_dropped_too_long,
        "labels_looked_at": num_labels,
        "prompts_left_out_for_labels": len(inputs.prompts.prompts) - len(prompts),
        "longest_prompt_tokens": max(len(prompt.token_ids) for prompt in prompts),
        "held_out_prompts": len(held_out.prompts),
        "held_out_prompts_left_out_for_labels": len(inputs.evaluation_prompts) - len(held_out.prompts),
        **({"held_out_prompts_left_out": dict(held_out.left_out)} if held_out.left_out else {}),
        "stop_token_ids": list(inputs.stop_token_ids),
        "passes_over_the_data": round(config.run.num_steps * config.grpo.groups_per_step / len(prompts), 3),
        "model_folder": str(model_folder),
        **_custom_verifiers(config),
        **_environments(config, inputs, (*prompts, *held_out.prompts)),
        **_servers(config, inputs.verifiers_to_ask_for),
    }
    if config.reward.model.path:
        model = describe_reward_model(config.reward.model, weights=False)
        facts |= {"reward_model_folder": str(model.folder), "reward_model_max_tokens": model.max_length_tokens}
    return config, facts


def _check_labels(config: RunConfig, inputs: PreparedInputs) -> tuple[int | str, Collection[str]]:
    """Returns the number of checked labels, or why no label was checked, and the ids of prompts with malformed labels.

    Raises `InvalidArgument` if `data.malformed_labels` refuses malformed labels.
    """
    if config.data.malformed_labels == "keep":
        return "no label was checked, since data.malformed_labels is keep", ()
    if importlib.util.find_spec("math_verify") is None:
        return "no label was checked, since shoal[reward] is not installed here; a run checks labels when it starts", ()
    prompts, questions = inputs.prompts.prompts, inputs.evaluation_prompts
    labels = Labels((*prompts, *questions))
    pairs = [[truth.verifier, truth.label] for truth in labels.distinct]
    if len(pairs) >= _MANY_LABELS:
        print(f"note: checking {len(pairs)} labels; data.malformed_labels=keep skips this", file=sys.stderr)
    problems = call_reward_process("check", {"config": dump_config(config), "labels": pairs})
    malformed = labels.malformed(problems)
    for message, _ in left_out(config.data, malformed, prompts, questions):
        print(f"note: {message}", file=sys.stderr)
    return len(labels.distinct), {label.prompt_id for label in malformed}


def _custom_verifiers(config: RunConfig) -> dict[str, Any]:
    """Tries the custom verifiers."""
    facts: dict[str, Any] = {}
    if tried := check_custom_verifiers(config):
        facts["custom_verifiers"] = {name: one["digest"][:12] for name, one in tried.items()}
        facts["custom_verifiers_tried"] = {name: _trial(**one) for name, one in tried.items()}
    return facts


def _environments(config: RunConfig, inputs: PreparedInputs, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Loads the environments, also those of servers, checks the tools that rows name, and tries rendering."""
    facts: dict[str, Any] = {}
    loaded, served = check_environments(config), ask_environment_servers(config)
    if found := loaded | served:
        tools = {name: known for name, known in found.items() if not isinstance(known, str)}
        check_tools_of_rows(prompts, {name: [tool.name for tool in known] for name, known in tools.items()})
        for name in unwritten_tools(config, inputs, prompts, tools):
            print(f"warning: {missing_tools(name)}", file=sys.stderr)
        for name, why in found.items():
            if isinstance(why, str):
                where = "" if name in served else "it cannot work on this machine: "
                print(f"warning: environments.{name}: {where}{why}", file=sys.stderr)
        if loaded:
            facts["environments_loaded"] = [name for name in loaded if name in tools]
        if served:
            facts["environments_at_servers"] = [name for name in served if name in tools]
    return facts


def _servers(config: RunConfig, to_ask_for: Sequence[str]) -> dict[str, Any]:
    """Sends one request to each server that a run needs, and looks there for the verifiers that rows name.

    Only warns if Weights & Biases refuses, since the run would continue without Weights & Biases.
    """
    asked: dict[str, Any] = check_reward_servers(config, asks=True)
    lists = [found for found in asked.values() if isinstance(found, list)]
    listed = {name for names in lists for name in names}
    unknown = [name for name in to_ask_for if name not in listed]
    if unknown and len(lists) == len(config.reward.servers):
        raise InvalidArgument(
            f"no server of reward.servers has the verifier {unknown[0]!r}, which rows name: correct the rows, or add a "
            f"server that has it (the servers have: {', '.join(sorted(listed)) or 'no verifiers'})"
        )
    if config.tracking.wandb == "online":
        problem = wandb_login_problem()
        if problem:
            print(
                f"warning: tracking.wandb: {problem}; the run would continue without Weights & Biases", file=sys.stderr
            )
        asked["tracking.wandb"] = problem or "the key is accepted"
    return {
        **({"servers_asked": asked} if asked else {}),
        **({"verifiers_not_known_before_the_run_starts": unknown} if unknown else {}),
    }


def _trial(digest: str, tried_on: str, value: float | None) -> str:
    if not tried_on:
        return "not called, because no row names the verifier"
    verdict = "unscorable" if value is None else f"{value:g}"
    return f"{verdict} for a completion that equals the label of {tried_on}"
