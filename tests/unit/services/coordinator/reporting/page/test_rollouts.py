import pytest

from services.coordinator.reporting.page.rollouts import STRIP_HEIGHT, fate_of, how_sampled, reward_bars, reward_of
from services.coordinator.rollout.groups import DropReason
from services.coordinator.store.tables.blocks import LOST
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from tests.support.wordings import numbers_in


def rollout(reward: float | None) -> pb.Rollout:
    outcome = rollout_pb2.SCORE_OUTCOME_FAILED if reward is None else rollout_pb2.SCORE_OUTCOME_SCORED
    return pb.Rollout(score=rollout_pb2.Score(outcome=outcome, reward=reward or 0.0))


def heights(*rewards: float | None) -> list[float]:
    return [bar.height for bar in reward_bars(pb.RolloutGroup(rollouts=map(rollout, rewards)))]


def test_a_completion_that_failed_or_is_not_scored_has_no_reward() -> None:
    assert (reward_of(rollout(0.0)), reward_of(rollout(None)), reward_of(pb.Rollout())) == (0.0, None, None)


def test_bars_show_rewards_between_0_and_1() -> None:
    assert heights(0.5, 1.0) == [STRIP_HEIGHT / 2, STRIP_HEIGHT]
    assert 0 < heights(0.0)[0] < STRIP_HEIGHT / 4, "a reward of 0 must be seen, and be small"


def test_bars_show_rewards_beyond_0_and_1() -> None:
    assert heights(-1.0, 1.0, 3.0)[1:] == [STRIP_HEIGHT / 2, STRIP_HEIGHT]


def test_a_completion_without_a_reward_is_an_empty_box() -> None:
    assert [bar.kind for bar in reward_bars(pb.RolloutGroup(rollouts=[rollout(None), rollout(1.0)]))] == [
        "none", "reward",
    ]  # fmt: skip


@pytest.mark.parametrize("reason", DropReason)
def test_every_drop_reason_is_explained(reason: DropReason) -> None:
    fate = fate_of(pb.RolloutGroup(state="DROPPED", drop_reason=reason), has_ended=False)
    assert fate.startswith(f"dropped, {reason}: "), fate


def test_every_state_has_words() -> None:
    trained = pb.RolloutGroup(state="TRAINED", train_step=1200)
    dropped = pb.RolloutGroup(state="DROPPED", drop_reason="of_a_later_version")
    for has_ended in (False, True):
        assert "step 1,200" in fate_of(trained, has_ended=has_ended)
        assert fate_of(dropped, has_ended=has_ended) == "dropped, of_a_later_version"
        assert fate_of(pb.RolloutGroup(state=LOST), has_ended=has_ended).startswith("lost")


@pytest.mark.parametrize("state", ["ISSUED", "SAMPLED", "SCORED"])
def test_a_group_is_under_way_only_until_the_run_ends(state: str) -> None:
    group = pb.RolloutGroup(state=state)
    assert "the run ended before" in fate_of(group, has_ended=True)
    assert "ended" not in fate_of(group, has_ended=False)


def test_a_completion_that_saw_an_update_names_both_versions() -> None:
    spans = [
        rollout_pb2.VersionSpan(version=rollout_pb2.WeightVersion(policy_version=version)) for version in (3, 4, 5)
    ]
    sampled = pb.Rollout(num_tokens=1400, finish_reason=rollout_pb2.FINISH_REASON_LENGTH, version_spans=spans)
    assert "cut off" in how_sampled(sampled) and numbers_in(how_sampled(sampled)) == ["1,400", "3", "5"]
    del sampled.version_spans[1:]
    assert numbers_in(how_sampled(sampled)) == ["1,400", "3"]
