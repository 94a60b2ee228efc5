"""Runs and groups as text for people."""

from typing import TYPE_CHECKING

from services.coordinator.cli.shared.output import Output, print_message, print_pairs
from shoal.quantities import counted, format_bytes
from shoal.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.v1 import coordinator_pb2 as pb
    from shoal.v1 import rollout_pb2

_MAX_OBSERVATION_CHARS = 600


def print_run(run: "pb.Run", output: Output, *, with_metrics: bool = False) -> None:
    """Writes a run. The text has the last step's metrics (about 100) only `with_metrics`; JSON always has them."""
    if output is Output.JSON:
        print_message(run)
        return
    pairs = [
        ("run", run.run_id),
        ("state", f"{state_name(run)} - {run.message}" if run.message else state_name(run)),
        ("step", f"{run.policy_version} of {run.num_steps}"),
        ("restored", counted(run.attempt, "time")),
        ("checkpoint", run.last_checkpoint_id or "none yet"),
        ("groups", ", ".join(f"{count} {state}" for state, count in sorted(run.num_groups.items())) or "none yet"),
        ("folder", run.path),
    ]
    metrics = run.metrics if with_metrics else {}
    print_pairs([*pairs, *((name, f"{value:g}") for name, value in sorted(metrics.items()))])


def print_changes(changes: "Iterable[pb.ConfigChange]") -> None:
    """Writes the changed values of a run's configuration, and when they take effect."""
    lines = [f"{each.field}: {each.change}, {'from the next step on' if each.waits else 'at once'}" for each in changes]
    print("\n".join(lines) or "nothing has changed: the run already has these values")


def state_name(run: "pb.Run") -> str:
    """Returns the state of a run, such as "RUNNING"."""
    from shoal.v1 import coordinator_pb2 as pb

    return pb.RunState.Name(run.state).removeprefix("RUN_STATE_")


def has_ended(run: "pb.Run") -> bool:
    """Whether a run has ended, with success or without."""
    from shoal.v1 import coordinator_pb2 as pb

    return run.state in (pb.RUN_STATE_FINISHED, pb.RUN_STATE_STOPPED, pb.RUN_STATE_FAILED)


def print_group(group: "pb.RolloutGroup") -> None:
    """Writes a group: its state, its prompt, and each completion with its reward, or why there is no reward."""
    from shoal.data.rows import row_name

    fate = f"TRAINED in step {group.train_step}" if group.train_step else group.state
    age = f", staleness {group.staleness}" if group.HasField("staleness") else ""
    reason = f" ({group.drop_reason})" if group.drop_reason else ""
    part = f"  ({len(group.rollouts)} of {group.num_rollouts} completions)" * (len(group.rollouts) < group.num_rollouts)
    print(f"{group.group_id}  {fate}{reason}{age}  prompt {row_name(group.prompt_id)}  trace {group.trace_id}{part}")
    print(f"  {_shown(group.prompt_text, group.prompt_text_bytes)}")
    for rollout in group.rollouts:
        print(f"  {rollout.sample_index:>3}  {_reward(rollout):>10}  {_summary(rollout)}")
        for line in (*_episode(rollout), *_failures(rollout)):
            print(f"  {'':>3}  {'':>10}  {line}")


def _summary(rollout: "pb.Rollout") -> str:
    """Returns a completion's text, or how an episode ended, since the episode's turns are printed after it."""
    from services.coordinator.reporting.episode_words import ending_of

    if rollout.HasField("episode"):
        return visible(ending_of(rollout.episode))
    return _shown(rollout.text, rollout.text_bytes)


def _shown(text: str, num_bytes: int) -> str:
    """Returns a text for display. If it is cut, `num_bytes` is the size of the whole text."""
    return f"{text!r} (the beginning of {format_bytes(num_bytes)})" if num_bytes else repr(text)


def _reward(rollout: "pb.Rollout") -> str:
    """Returns the reward of a scored completion, or the outcome of scoring; "-" before the completion is scored."""
    from shoal.v1 import rollout_pb2

    if not rollout.HasField("score"):
        return "-"
    if rollout.score.outcome == rollout_pb2.SCORE_OUTCOME_SCORED:
        return f"{rollout.score.reward:.3f}"
    return _outcome_name(rollout.score.outcome)


def _failures(rollout: "pb.Rollout") -> list[str]:
    """Returns the full message of each verifier without a score. A message may quote the completion."""
    from shoal.v1 import rollout_pb2

    return [
        line
        for part in rollout.score.verifier_scores
        if part.outcome != rollout_pb2.SCORE_OUTCOME_SCORED
        for line in (
            f"{part.verifier} {_outcome_name(part.outcome)}: {visible(part.detail) or 'it gave no reason'}".splitlines()
        )
    ]


def _episode(rollout: "pb.Rollout") -> "Iterable[str]":
    """Yields the messages of an episode, one per line; only both ends of a long message of the environment."""
    from services.coordinator.reporting.episode_words import words_of

    if not rollout.HasField("episode"):
        return
    for said in words_of(rollout.episode):
        text = said.text if said.is_policy else _beginning_and_end(said.text)
        yield f"{visible(said.who):>12}  {text!r}{f'  ({visible(said.note)})' if said.note else ''}"


def _beginning_and_end(text: str) -> str:
    left_out = len(text) - _MAX_OBSERVATION_CHARS
    if left_out <= 0:
        return text
    half = _MAX_OBSERVATION_CHARS // 2
    return f"{text[:half]}[… {left_out:,} characters left out; --output json has them …]{text[-half:]}"


def _outcome_name(outcome: "rollout_pb2.ScoreOutcome.ValueType") -> str:
    from shoal.v1 import rollout_pb2

    return rollout_pb2.ScoreOutcome.Name(outcome).removeprefix("SCORE_OUTCOME_")
