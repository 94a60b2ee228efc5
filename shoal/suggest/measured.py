"""Rates of a machine, measured from the metrics of a run on it."""

from collections.abc import Sequence
from pathlib import Path
from statistics import StatisticsError, median

from shoal.config.load import parse_config
from shoal.config.run import RunConfig
from shoal.errors import InvalidArgument
from shoal.parsing import parse_json
from shoal.paths import why_unread
from shoal.quantities import counted
from shoal.suggest.cost import Rates, operations_per_token, pass_bytes, seats_in_use
from shoal.suggest.shape import ModelShape, model_shape

_MIN_STEPS = 3
"""Smallest number of steps to measure: the first step includes the start, and a single other step is not enough."""


def rates_of_run(folder: Path) -> Rates:
    """Computes the rates of a run from its `config.json` and `metrics.jsonl`: medians over all steps but the first.

    Raises `InvalidArgument` for a folder that is not a run's folder, and for a run with too few steps.
    """
    try:
        config = parse_config(parse_json((folder / "config.json").read_text(encoding="utf-8")))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [row for row in map(parse_json, lines) if isinstance(row, dict) and "time/step" in row]
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"--measured {folder}: is not the folder of a run: there is no {Path(error.filename).name} in it"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"--measured {folder}: is not the folder of a run: {why_unread(error)}") from None
    if len(rows) < _MIN_STEPS:
        raise InvalidArgument(f"--measured {folder}: has {len(rows)} train steps, and at least {_MIN_STEPS} are needed")
    try:
        return _rates(config, model_shape(config.model.path, config.model.revision), rows[1:], folder.name)
    except (KeyError, TypeError, StatisticsError) as error:
        raise InvalidArgument(f"--measured {folder}: its metrics are incomplete: {error}") from None


def _rates(config: RunConfig, shape: ModelShape, rows: Sequence[dict[str, float]], name: str) -> Rates:
    engines, verifiers = config.launch.num_generators, config.launch.num_rewards * config.reward.num_processes

    # Rates count only the seconds in which a service had work.
    busy = [max(1e-3, 1 - row["waiting/generators"]) for row in rows]
    sampled = median([row["generator_tokens_per_second_step"] / share for row, share in zip(rows, busy, strict=True)])
    used = median([row["usage/generator_seats"] / share for row, share in zip(rows, busy, strict=True)])
    seats = max(1e-3, used * config.generator.max_num_seqs)
    trained = median([row["learner_tokens_per_second_step"] for row in rows])
    scoring_s = median([(1 - row["waiting/rewards"]) * row["time/step"] for row in rows])
    outside_s = median(
        [max(0.0, row["time/step"] - row["time/training"] - row["time/waiting_for_groups"]) for row in rows]
    )
    lengths = median([row["val/sequence_lengths"] for row in rows])
    trained_share = median([row["val/total_reward_groups"] for row in rows]) / config.grpo.groups_per_step
    sequences = [row["val/total_reward_groups"] * config.grpo.group_size for row in rows]
    whole = median([row["val/num_step_tokens"] / count for row, count in zip(rows, sequences, strict=True) if count])
    prompts = max(0.0, whole - lengths)
    return Rates(
        # An engine makes one pass for each token of a completion.
        generate_bytes=pass_bytes(config, shape, seats, prompts + lengths / 2) * sampled / engines / seats,
        seats_share=min(1.0, seats / seats_in_use(config)),
        update_flops=operations_per_token(config) * shape.num_parameters * trained / config.launch.num_learner_ranks,
        reward_s=scoring_s * verifiers / config.grpo.completions_per_step,
        step_s=outside_s,
        length_share=min(1.0, lengths / config.sampling.max_completion_tokens),
        prompt_share=min(1.0, prompts / config.data.max_prompt_tokens),
        trained_share=min(1.0, trained_share),
        source=(
            f"measured by run {name}, {counted(len(rows), 'step')} of {config.model.path}: {sampled:,.0f} tokens/s "
            f"sampled by {counted(engines, 'engine')} with {seats:.1f} completions in each at a time, "
            f"{trained:,.0f} tokens/s trained on by {counted(config.launch.num_learner_ranks, 'rank')}, completions of "
            f"{lengths:.0f} tokens; valid for the machine of that run and for models, lengths and batches like its own"
        ),
    )
