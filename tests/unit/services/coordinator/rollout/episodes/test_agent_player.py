"""Episodes of an agent: their limits, pauses and losses, and what is trained on."""

import asyncio
from typing import Any

import numpy as np
import pytest

from services.coordinator.rollout.episodes import agent_player
from services.coordinator.rollout.episodes.messages import PolicyAnswer, PolicyRefusal, RefusalReason
from services.coordinator.rollout.episodes.metrics import episode_metrics
from services.coordinator.rollout.episodes.stream import EnvironmentLost
from services.coordinator.rollout.groups import counted_tokens
from services.coordinator.rollout.pause import Pause
from services.coordinator.workers import lost_work
from shoal.conversation import ChatMessage
from shoal.rollout import FinishReason
from shoal.scores import ScoreOutcome
from tests.support.played_agent import ADD, OPENER, Policy, play, said, user
from tests.support.waiting import settled


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_work, "FIRST_PAUSE_S", 0.0)


async def test_what_an_auxiliary_call_says_is_no_part_of_the_episode() -> None:
    async def agent(policy: Policy) -> None:
        answer = await policy.say(user("one"))
        await policy.say(user("judge"), is_auxiliary=True)
        await policy.say(user("one"), answer, user("aside"), is_auxiliary=True)
        await policy.say(user("one"), answer, user("two"))

    played = await play(agent, max_turns=2)
    (whole,) = played.segments
    assert "judge" not in whole and "aside" not in whole and whole.count("answer") == 2
    assert played.episode.num_auxiliary_turns == 2


async def test_each_limit_refuses_and_truncates() -> None:
    async def agent(policy: Policy) -> None:
        replies = [await policy.ask(user(f"call {number}")) for number in range(4)]
        kinds = [reply.reason if isinstance(reply, PolicyRefusal) else None for reply in replies]
        assert kinds == [None, None, RefusalReason.LIMIT, RefusalReason.LIMIT], kinds

    played = await play(agent, max_turns=2)
    assert (played.episode.stop_reason, played.episode.is_truncated, len(played.segments)) == ("max_turns", True, 2)
    played = await play(agent, max_completion_tokens=16)
    assert played.episode.stop_reason == "max_tokens" and played.completion.num_tokens == 16


async def test_many_calls_at_once_are_no_more_than_the_limit() -> None:
    async def agent(policy: Policy) -> None:
        replies = await asyncio.gather(*(policy.ask(user("same")) for _ in range(9)))
        assert sum(isinstance(reply, PolicyAnswer) for reply in replies) == 3

    assert len((await play(agent, max_turns=3)).episode.turns) == 3


async def test_a_context_that_is_full_is_refused_and_the_episode_goes_on() -> None:
    async def agent(policy: Policy) -> None:
        reply = await policy.ask(user("word " * 200))
        assert isinstance(reply, PolicyRefusal) and reply.reason is RefusalReason.CONTEXT_FULL, reply
        await policy.say(user("short"))

    played = await play(agent, max_completion_tokens=100, max_prompt_tokens=100)
    assert (played.episode.stop_reason, played.episode.is_truncated) == ("done", False)


async def test_an_agent_whose_every_call_is_refused_reaches_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_player, "_MAX_REFUSED", 5)

    async def agent(policy: Policy) -> None:
        replies = [await policy.ask() for _ in range(6)]
        assert isinstance(replies[-1], PolicyRefusal) and replies[-1].reason is RefusalReason.LIMIT

    played = await play(agent)
    assert (played.episode.stop_reason, played.episode.outcome) == ("max_turns", ScoreOutcome.UNSCORABLE)


async def test_a_call_in_a_pause_is_answered_when_the_run_goes_on() -> None:
    pause = Pause()
    pause.pause()

    async def agent(policy: Policy) -> None:
        asked = asyncio.create_task(policy.ask(user("one")))
        await settled()
        assert not asked.done(), asked
        pause.resume()
        assert isinstance(await asked, PolicyAnswer), asked

    played = await play(agent, pause=pause)
    assert (played.num_plays, len(played.episode.turns)) == (1, 1)


async def test_a_long_pause_is_told_and_an_agent_that_gives_up_in_it_runs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_player, "_HOLD_S", 0.0)
    pause = Pause()

    async def agent(policy: Policy) -> None:
        if pause.num_pauses == 4:
            await policy.say(user("one"))
            return
        pause.pause()
        reply = await policy.ask(user("one"))
        assert isinstance(reply, PolicyRefusal) and reply.reason is RefusalReason.PAUSED and reply.retry_after_s > 0
        pause.resume()
        raise RuntimeError("429")

    played = await play(agent, pause=pause, max_losses=1)
    assert played.num_plays == 5 and played.episode.outcome is ScoreOutcome.SCORED, "no loss is counted in a pause"


async def test_waiting_in_a_pause_reaches_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_player, "_MAX_REFUSED", 3)
    monkeypatch.setattr(agent_player, "_HOLD_S", 0.0)
    pause = Pause()
    pause.pause()

    async def agent(policy: Policy) -> None:
        for _ in range(9):
            assert isinstance(await policy.ask(user("one")), PolicyRefusal)
        pause.resume()
        await policy.say(user("one"))

    played = await play(agent, pause=pause)
    assert (played.episode.stop_reason, len(played.episode.turns), played.num_plays) == ("done", 1, 1)


async def test_an_agent_that_breaks_runs_again_and_then_fails() -> None:
    async def agent(policy: Policy) -> None:
        await policy.say(user("one"))
        raise RuntimeError("oh")

    played = await play(agent, max_losses=2)
    assert played.num_plays == 2 and played.episode.outcome is ScoreOutcome.FAILED
    assert "oh" in played.episode.detail


async def test_calls_that_an_agent_does_not_wait_for_are_dropped() -> None:
    async def agent(policy: Policy) -> None:
        await policy.say(user("one"))
        left = asyncio.create_task(policy.ask(user("two")))
        await asyncio.sleep(0)
        left.cancel()

    played = await play(agent)
    assert len(played.episode.turns) in (1, 2) and played.episode.outcome is ScoreOutcome.SCORED


async def test_with_supports_each_token_of_every_segment_has_one() -> None:
    async def agent(policy: Policy) -> None:
        messages = [user("one")]
        await policy.say(*messages, await policy.say(*messages), user("two"))
        await policy.say(user("other"))

    completion = (await play(agent, return_support=True)).completion
    assert completion.support is not None and len(completion.support.counts) == completion.num_tokens


async def test_a_reward_of_a_turn_is_that_of_the_answer_that_the_agent_names() -> None:
    async def agent(policy: Policy) -> dict[str, Any]:
        main = [user("one")]
        main += [await policy.say(*main), user("two")]
        await policy.say(user("aside"))
        await policy.say(*main)
        return {"turn_rewards": {"c0": 0.25, "c1": 0.5}}

    played = await play(agent)
    turns = [(turn.message.content, turn.reward, turn.number) for turn in played.episode.turns]
    assert turns == [("answer 1", 0.25, 1), ("answer 3", None, 3), ("answer 2", 0.5, 2)]
    assert [turn.reward for turn in played.episode.turns_in_time] == [0.25, 0.5, None]
    assert played.completion.text == "answer 3", "what the policy said last, whatever its segment"


async def test_a_reward_of_what_is_not_trained_on_fails_the_episode() -> None:
    async def agent(policy: Policy) -> dict[str, Any]:
        await policy.say(user("one"))
        await policy.say(user("judge"), is_auxiliary=True)
        return {"turn_rewards": {"c1": 1.0}}

    played = await play(agent, max_losses=1)
    assert played.episode.outcome is ScoreOutcome.FAILED
    assert "'c1'" in played.episode.detail


async def test_an_answer_that_the_agent_never_read_is_no_part_of_the_episode() -> None:
    async def agent(policy: Policy) -> dict[str, Any]:
        messages = [user("one")]
        messages += [await policy.say(*messages), user("two")]
        await policy.say(*messages)  # c1: its time was over, and the agent asks again in its own way.
        await policy.say(*messages, user("quick"))
        await policy.say(user("other"))  # c3
        return {"unread_call_ids": ("c1", "c3", "c9")}

    played = await play(agent)
    assert [turn.message.content for turn in played.episode.turns] == ["answer 1", "answer 3"]
    assert [segment.count("answer") for segment in played.segments] == [1, 2], played.segments
    assert played.segments[0] == f"{said('user', 'one')}{OPENER}answer 1<|im_end|>", "nothing is left of it"
    assert played.episode.turns[0].observations == () and played.episode.num_auxiliary_turns == 2
    completion = played.completion
    assert completion.text == "answer 3" and completion.loss_mask is not None
    ranges = [range(turn.start, turn.end) for turn in played.episode.turns]
    assert np.flatnonzero(completion.loss_mask).tolist() == [token for tokens in ranges for token in tokens]
    assert [segment.end for segment in played.episode.segments][-1] == completion.num_tokens


async def test_an_unread_answer_that_the_agent_went_on_from_stays() -> None:
    async def agent(policy: Policy) -> dict[str, Any]:
        await policy.say(user("one"))
        again = await policy.say(user("one"))  # The same words, drawn once more.
        await policy.say(user("one"), again, user("two"))
        return {"unread_call_ids": ("c0",)}

    played = await play(agent, lambda turn: "same")
    assert [len(segment.split("same")) - 1 for segment in played.segments] == [2, 1], played.segments


async def test_an_agent_that_read_nothing_is_unscorable() -> None:
    async def agent(policy: Policy) -> dict[str, Any]:
        await policy.say(user("one"))
        return {"unread_call_ids": ("c0",)}

    played = await play(agent)
    assert (played.episode.outcome, played.episode.turns) == (ScoreOutcome.UNSCORABLE, ())
    assert "read no answer" in played.episode.detail


async def test_calls_at_once_sample_no_more_than_the_episode_may_have() -> None:
    async def agent(policy: Policy) -> None:
        replies = await asyncio.gather(*(policy.ask(user(f"call {number}")) for number in range(4)))
        kinds = [reply.reason if isinstance(reply, PolicyRefusal) else None for reply in replies]
        assert kinds == [None, None, None, RefusalReason.LIMIT], kinds
        assert isinstance(replies[2], PolicyAnswer)
        assert (len(replies[2].token_ids), replies[2].finish_reason) == (5, FinishReason.LENGTH)

    played = await play(agent, lambda turn: "z" * 9, max_completion_tokens=25)
    assert played.completion.num_tokens == 25 and played.episode.stop_reason == "max_tokens"
    assert played.episode.is_truncated and len(played.episode.turns) == 3


async def test_prompts_of_calls_at_once_fit_into_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_player, "_MAX_PROMPT_TOKENS", 100)

    async def agent(policy: Policy) -> None:
        replies = await asyncio.gather(*(policy.ask(tokens=[5] * 40) for _ in range(4)))
        assert sum(isinstance(reply, PolicyAnswer) for reply in replies) == 2

    played = await play(agent)
    assert sum(len(segment.prompt_token_ids) for segment in played.episode.segments) == 80


async def test_what_was_said_before_a_loss_is_neither_trained_on_nor_counted() -> None:
    plays: list[int] = []

    async def agent(policy: Policy) -> dict[str, Any]:
        plays.append(len(plays))
        messages = [user(f"play {len(plays)}")]
        await policy.say(user("judge"), is_auxiliary=True)
        messages += [await policy.say(*messages, tools=(ADD,)), ChatMessage("tool", "2", name="add")]
        if len(plays) < 3:
            left = asyncio.create_task(policy.ask(user("on its way")))
            await asyncio.sleep(0)
            left.cancel()
            raise EnvironmentLost("reward", "its process ended")
        await policy.say(*messages, tools=(ADD,))
        return {"turn_rewards": {"c1": 0.5}}

    played = await play(agent, lambda turn: "<add>1</add>" if turn % 2 else "done", max_turns=2, max_losses=3)
    (whole,) = played.segments
    assert "play 3" in whole and "play 1" not in whole and "on its way" not in whole
    assert (len(played.episode.turns), played.episode.num_auxiliary_turns, played.episode.outcome) == (
        2,
        1,
        ScoreOutcome.SCORED,
    )
    assert (played.episode.stop_reason, played.episode.is_truncated) == ("done", False), "limits count this play alone"
    assert played.episode.turns[0].reward == 0.5
    assert int(counted_tokens(played.completion).sum()) == sum(turn.end - turn.start for turn in played.episode.turns)
    metrics = episode_metrics([(played.prompt, played.completion)])
    assert metrics["episodes/turns"] == 2 and metrics["episodes/tool_calls"] == 0
    assert metrics["episodes/policy_tokens"] == int(counted_tokens(played.completion).sum())
    assert len(set(played.generators.seeds)) < len(played.generators.seeds), "a play draws what the one before drew"


@pytest.mark.parametrize("grows", [False, True])
async def test_an_agent_that_is_lost_again_and_again_is_given_up(grows: bool) -> None:
    plays: list[int] = []

    async def agent(policy: Policy) -> None:
        plays.append(len(plays))
        for number in range(len(plays) if grows else 1):
            if isinstance(await policy.ask(user(f"{number}")), PolicyRefusal):
                break
        raise EnvironmentLost("reward", "its process ended")

    played = await play(agent, max_turns=4, max_losses=2)
    # Each play that gets a turn further gives another try, so that kills at random never add up; turns are bounded.
    assert played.num_plays == (5 if grows else 2), played.num_plays
    assert played.episode.outcome is ScoreOutcome.FAILED and "its process ended" in played.episode.detail
