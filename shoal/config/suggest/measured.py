"""What a machine really does, from the figures of a run that it took."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import StatisticsError, median

from shoal.config.derived import derived_values
from shoal.config.load import parse_config
from shoal.config.run import RunConfig
from shoal.config.suggest.cost import Rates, operations_per_token
from shoal.config.suggest.shape import ModelShape, model_shape
from shoal.errors import InvalidArgument

_LEAST_STEPS = 3
"""Steps that it takes: the first pays for starting, and one more would be no measurement."""


def rates_of_run(folder: Path) -> Rates:
    """The rates of a run's own steps but the first, each the median over them, from its `config.json` and
    `metrics.jsonl`.

    Raises `InvalidArgument` for a folder that is no run's, and for a run of too few steps.
    """
    try:
        config = parse_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [row for row in map(json.loads, lines) if "time/step" in row]
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"--measured {folder}: is no folder of a run of Shoal's: {error}") from None
    if len(rows) < _LEAST_STEPS:
        raise InvalidArgument(
            f"--measured {folder}: holds {len(rows)} train steps, and {_LEAST_STEPS} are the least to measure by"
        )
    try:
        return _rates(config, model_shape(config.model.path, config.model.revision), rows[1:], folder.name)
    except (KeyError, StatisticsError) as error:
        raise InvalidArgument(f"--measured {folder}: its steps do not tell all that is needed: {error}") from None


def _rates(config: RunConfig, shape: ModelShape, rows: Sequence[dict[str, float]], name: str) -> Rates:
    derived = derived_values(config)
    engines, verifiers = config.launch.num_generators, config.launch.num_rewards * config.reward.num_processes

    # Per second in which a service had something to do.
    sampled = median(
        [row["generator_tokens_per_second_step"] / max(1e-3, 1 - row["waiting/generators"]) for row in rows]
    )
    trained = median([row["learner_tokens_per_second_step"] for row in rows])
    scoring_s = median([(1 - row["waiting/rewards"]) * row["time/step"] for row in rows])
    outside_s = median(
        [max(0.0, row["time/step"] - row["time/training"] - row["time/waiting_for_groups"]) for row in rows]
    )
    lengths = median([row["val/sequence_lengths"] for row in rows])
    trained_share = median([row["val/total_reward_groups"] for row in rows]) / config.grpo.groups_per_step
    sequences = [row["val/total_reward_groups"] * config.grpo.group_size for row in rows]
    whole = median([row["val/num_step_tokens"] / count for row, count in zip(rows, sequences, strict=True) if count])
    return Rates(
        generate_flops=2 * shape.num_parameters * sampled / engines,
        update_flops=operations_per_token(config) * shape.num_parameters * trained / derived.world_size,
        reward_s=scoring_s * verifiers / derived.completions_per_step,
        step_s=outside_s,
        length_share=min(1.0, lengths / config.sampling.max_completion_tokens),
        prompt_share=min(1.0, max(0.0, whole - lengths) / config.data.max_prompt_tokens),
        trained_share=min(1.0, trained_share),
        source=(
            f"measured by run {name}, {len(rows)} steps of {config.model.path}: {sampled:,.0f} tokens/s sampled by "
            f"{engines} engine(s), {trained:,.0f} tokens/s trained on by {derived.world_size} rank(s), completions "
            f"of {lengths:.0f} tokens; on the machine of that run, for models of its size, lengths and batches like "
            "its own"
        ),
    )
