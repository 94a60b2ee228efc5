"""Notes on settings that are allowed but do less than expected."""

from shoal.config.run import RunConfig
from shoal.config.tables.verifiers import MEASURES, ZERO_AT_BEST
from shoal.quantities import counted

_TOKEN_S = 0.03
"""Seconds per token of a completion, in an engine that is full of completions (a 7B model on an H100)."""
_TOKENS_PER_S = 10_000.0
"""Tokens per second of a learner on one GPU (1.5B parameters on an H200)."""


def notes_on(config: RunConfig) -> list[str]:
    """Describes the settings that have no effect, or less than they promise, each with a cure."""
    kinds = (_without_effect, _beyond_determinism, _signal_of_wrong_answers, _too_short, _beyond_the_run)
    return [note for kind in kinds for note in kind(config)]


def _without_effect(config: RunConfig) -> list[str]:
    num_steps = config.run.num_steps
    periods = {
        "checkpoint.export_every_steps": (
            config.checkpoint.export_every_steps,
            "no step is exported, only the trained model at the end; lower the field, or set the field to 0",
        ),
        "evaluation.every_steps": (
            config.evaluation.every_steps if config.evaluation.sources else 0,
            "only the policies of the beginning and the end are evaluated; lower the field, or set the field to 0",
        ),
        "kl.reference_update_steps": (
            config.kl.reference_update_steps or 0,
            "the reference stays the initial model; lower the field, or unset the field",
        ),
    }
    return [
        f"{field}: {every} is more than the {counted(num_steps, 'step')} of the run, so {effect}"
        for field, (every, effect) in periods.items()
        if 0 < num_steps < every
    ]


def _too_short(config: RunConfig) -> list[str]:
    """Describes deadlines that are too short for the lengths, at the rates of a full engine and a GPU learner."""
    given, notes = config.coordinator, []
    num_tokens = config.grpo.completions_per_step * config.max_sequence_tokens
    sampling_s, step_s = _TOKEN_S * config.max_completion_tokens, num_tokens / _TOKENS_PER_S
    if given.sampling_timeout_s is not None and given.sampling_timeout_s < sampling_s:
        notes.append(
            f"coordinator.sampling_timeout_s: {given.sampling_timeout_s:g} s is less than the time of a completion of "
            f"{config.max_completion_tokens} tokens at {1e3 * _TOKEN_S:g} ms a token ({sampling_s:.0f} s); groups with "
            "long completions would be dropped, and the policy would learn to be brief: unset the field, or raise the "
            "field"
        )
    if given.train_step_timeout_s is not None and given.train_step_timeout_s < step_s:
        notes.append(
            f"coordinator.train_step_timeout_s: {given.train_step_timeout_s:g} s is less than the time of a step of up "
            f"to {num_tokens} tokens at {_TOKENS_PER_S:g} tokens/s ({step_s:.0f} s); the learner would be considered "
            "hung: unset the field, or raise the field"
        )
    return notes


def _beyond_the_run(config: RunConfig) -> list[str]:
    """Describes a warm-up that does not end within the run, and waves that are too short for its steps."""
    total, warmup = config.num_optimizer_steps, config.num_warmup_steps
    if not total or config.learner.lr_scheduler == "constant":
        return []
    waves, left = config.learner.lr_num_cycles or 0.5, config.learner.lr_decay_steps or total - warmup
    if warmup < total and 2 * waves > max(left, 1):
        return [
            f"learner.lr_num_cycles: {waves:g} cycles in {left} optimizer steps have fewer than two steps each, so the "
            "learning rate cannot follow the cycles; lower the field, or raise run.num_steps"
        ]
    if warmup < total:
        return []
    field = "warmup_steps" if config.learner.warmup_steps else "warmup_ratio"
    return [
        f"learner.{field}: the learning rate rises for {counted(warmup, 'optimizer step')}, but the run has {total}, "
        f"so the learning rate ends at about {(total - 1) / warmup:.0%} of learner.learning_rate; lower the field, or "
        "raise run.num_steps"
    ]


def _beyond_determinism(config: RunConfig) -> list[str]:
    """Describes the parts of a deterministic run whose answers Shoal does not determine."""
    reward = config.reward
    if not config.run.deterministic:
        return []
    judges = {
        "reward.judge": bool(reward.judge.base_url),
        "reward.model": bool(reward.model.path or reward.model.base_url),
        "reward.servers": bool(reward.servers),
        "reward.custom": bool(reward.custom),
    }
    if found := [name for name, is_used in judges.items() if is_used]:
        return [
            "run.deterministic: a resumed run equals an uninterrupted run only if the values of "
            f"{' and '.join(found)} depend on prompt and completion alone, not on chance, clock or load; if they do "
            "not, use other verifiers"
        ]
    return []


def _signal_of_wrong_answers(config: RunConfig) -> list[str]:
    """Describes the parts of the reward that distinguish completions of a group even if all are wrong."""
    grpo, reward = config.grpo, config.reward
    if grpo.keep_zero_signal or grpo.filter_groups_by == "correct" or grpo.difficulty_low is not None:
        return []
    named = {name for source in config.data.sources for name in source.verifiers}
    shaping = {
        "reward.length with only_correct = false": bool(reward.length.coef) and not reward.length.only_correct,
        "reward.cosine": bool(reward.cosine.factor),
        "reward.overlong": bool(reward.overlong.factor),
        "reward.repetition": bool(reward.repetition.max_penalty),
        "reward.style": bool(reward.style.tags or reward.style.steps),
        "reward.format": reward.format.kind != "none" and reward.format.mode == "add",
        "reward.non_stop_penalty": reward.non_stop_penalty is not None,
        **{f"the verifier {name}": True for name in sorted(named & (ZERO_AT_BEST | MEASURES) - {"passthrough"})},
    }
    if not (found := [name for name, is_used in shaping.items() if is_used]):
        return []
    return [
        f"{' and '.join(found)}: a group whose completions are all wrong still has a "
        "signal from this part of the reward, so the group is trained on"
        f"{' and not replaced by active_sampling' if grpo.active_sampling else ''}; grpo.difficulty_low = 0 leaves "
        'out such groups, and grpo.filter_groups_by = "correct" also leaves out groups that are all right'
    ]
