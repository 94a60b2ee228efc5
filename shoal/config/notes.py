"""Notes on settings that are allowed, and do less than they seem to."""

from shoal.config.run import RunConfig
from shoal.config.verifiers import MEASURES, ZERO_AT_BEST


def notes_on(config: RunConfig) -> list[str]:
    """Describes the settings that have no effect, or less than they promise, each with its cure."""
    return [*_without_effect(config), *_beyond_determinism(config), *_signal_of_wrong_answers(config)]


def _without_effect(config: RunConfig) -> list[str]:
    every, num_steps = config.checkpoint.export_every_steps, config.run.num_steps
    if 0 < num_steps < every:
        return [
            f"checkpoint.export_every_steps: {every} is more than the {num_steps} steps of the run, so no step is "
            "exported, only the trained model at the end; lower it, or set it to 0"
        ]
    return []


def _beyond_determinism(config: RunConfig) -> list[str]:
    """Names the parts of a deterministic run whose answers Shoal does not determine."""
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
            f"run.deterministic: a resumed run equals one that was not interrupted only if the values of "
            f"{' and '.join(found)} depend on prompt and completion alone, without chance, clock or load; where they "
            "do not, use verifiers that compute"
        ]
    return []


def _signal_of_wrong_answers(config: RunConfig) -> list[str]:
    """Names the parts of the reward that tell completions apart though all of a group are wrong."""
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
        f"{' and '.join(found)}: a group whose completions are all wrong has a signal by this alone, so it is trained "
        f"on{' and not replaced by active_sampling' if grpo.active_sampling else ''}; grpo.difficulty_low = 0 leaves "
        'such groups out, and grpo.filter_groups_by = "correct" also groups that are all right'
    ]
