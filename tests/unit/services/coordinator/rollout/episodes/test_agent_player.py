"""Episodes of an agent, which is a function here, with a scripted policy."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest

from services.coordinator.rollout.completions import GroupRequest
from services.coordinator.rollout.controls import RunControls
from services.coordinator.rollout.episode_metrics import episode_metrics
from services.coordinator.rollout.episodes import agent_player
from services.coordinator.rollout.episodes.episode_sampler import EpisodeSampler
from services.coordinator.rollout.episodes.playing import EpisodeParts
from services.coordinator.rollout.episodes.stage import Stages
from services.coordinator.rollout.groups import SettledGroup, counted_tokens
from services.coordinator.workers import losses
from services.coordinator.workers.handover.group_progress import GroupProgress
from services.coordinator.workers.rewards.environment_pool import EnvironmentInfo
from services.coordinator.workers.rewards.episode_messages import BrokenEpisode, EpisodeResult, Observation
from services.coordinator.workers.rewards.episode_stream import EnvironmentLost
from services.coordinator.workers.rewards.growing_group import GrowingGroup
from services.coordinator.workers.rewards.policy_calls import PolicyAnswer, PolicyCall, PolicyRefusal, RefusalReason
from shoal.config import parse_config
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition
from shoal.rollout import Completion, EnvironmentTask, Episode, FinishReason, Prompt, SamplingParams, ScoreOutcome
from tests.unit.services.coordinator.rollout.episodes.test_player import TOKENIZER, Generators

ADD = ToolDefinition("add", "Adds.", {"type": "object", "properties": {"text": {"type": "string"}}})
NO_TOKENS = np.zeros(0, np.int32)
OPENER = "<|im_start|>assistant\n"
Reply = PolicyAnswer | PolicyRefusal


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "FIRST_PAUSE_S", 0.0)


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


class Policy:
    """What an agent calls."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[PolicyCall | EpisodeResult | Exception] = asyncio.Queue()
        self.replies: dict[str, asyncio.Future[Reply]] = {}

    async def ask(self, *messages: ChatMessage, tokens: Sequence[int] = (), **fields: Any) -> Reply:
        call_id = f"c{len(self.replies)}"
        self.replies[call_id] = asyncio.get_running_loop().create_future()
        given = {"tools": (), "max_tokens": 0, "stop_token_ids": (), "stop_strings": (), "is_auxiliary": False} | fields
        self.calls.put_nowait(PolicyCall(call_id, messages, token_ids=np.array(tokens, np.int32), **given))
        return await self.replies[call_id]

    async def say(self, *messages: ChatMessage, **fields: Any) -> ChatMessage:
        """Returns the answer."""
        reply = await self.ask(*messages, **fields)
        assert isinstance(reply, PolicyAnswer), reply
        return reply.message


Agent = Callable[[Policy], Awaitable[dict[str, Any] | None]]
"""Returns fields of its result, if it has any to say."""


@dataclass
class Environments:
    """Runs the agent, once more each time that the episode is played again."""

    agent: Agent
    num_plays: int = 0

    @contextlib.asynccontextmanager
    async def play(self, start: Any, replay: Sequence[Any]) -> AsyncIterator[Any]:
        self.num_plays += 1
        policy = Policy()
        running = asyncio.create_task(self._run(policy))

        async def next_call() -> Any:
            item = await policy.calls.get()
            if isinstance(item, Exception):
                raise item
            return item

        async def reply(call_id: str, given: Reply) -> None:
            policy.replies[call_id].set_result(given)

        first = AsyncMock(return_value=Observation((), None, False, ()))
        try:
            yield SimpleNamespace(first=first, next_call=next_call, reply=reply)
        finally:
            running.cancel()

    async def _run(self, policy: Policy) -> None:
        try:
            fields = await self.agent(policy) or {}
        except EnvironmentLost as error:
            policy.calls.put_nowait(error)
        except Exception as error:
            policy.calls.put_nowait(BrokenEpisode(repr(error)))
        else:
            policy.calls.put_nowait(EpisodeResult(ScoreOutcome.SCORED, 1.0, {}, "", **fields))


@dataclass
class Played:
    completion: Completion
    episode: Episode
    segments: list[str]
    """Each with its prompt, special tokens included."""
    num_plays: int
    prompt: Prompt
    generators: Generators = field(repr=False)


async def play(
    agent: Agent,
    says: Callable[[int], str] = lambda turn: f"answer {turn}",
    *,
    controls: RunControls | None = None,
    max_completion_tokens: int = 1000,
    max_prompt_tokens: int = 1000,
    return_support: bool = False,
    **episodes: Any,
) -> Played:
    """Plays one episode."""
    config = parse_config(
        {
            "model": {"path": "m"},
            "data": {"sources": [{"path": "d", "environment": "agent"}], "max_prompt_tokens": max_prompt_tokens},
            "sampling": {"max_completion_tokens": max_completion_tokens},
            "grpo": {"group_size": 2},
            "environments": [{"name": "agent", "server": "127.0.0.1:1"}],
            "episodes": {"tool_parser": "tag", "tools_in_prompt": False} | episodes,
        }
    )
    generators, environments = Generators(says), Environments(agent)
    stages = Stages(config, TOKENIZER)
    await stages.open([EnvironmentInfo("agent", (), False, "", is_agent=True)])
    prompt = Prompt("p:0", np.array([1, 2], np.int32), "", (), (user("row"),), EnvironmentTask("agent", {}))
    parts = EpisodeParts(config, environments, stages, lambda: 0.0, lambda *_: None)  # type: ignore[arg-type]
    sampler = EpisodeSampler(parts, controls or RunControls(), generators)  # type: ignore[arg-type]
    progress = GroupProgress([100])
    sampling = SamplingParams(1.0, max_completion_tokens, (), return_support=return_support)
    group = SettledGroup(3, "group-3", prompt, "")
    request = GroupRequest(group, progress, GrowingGroup(), sampling, "run/0/3/1", lambda: None, None)
    try:
        await sampler.sample(request, lambda change: None)
    finally:
        stages.close()
    completion = progress.completions[0]
    assert completion.episode is not None
    texts = [
        str(TOKENIZER.decode([*segment.prompt_token_ids, *completion.token_ids[segment.start : segment.end]]))
        for segment in completion.episode.segments
    ]
    return Played(completion, completion.episode, texts, environments.num_plays, prompt, generators)


def said(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


async def test_messages_that_are_added_are_rendered_behind_what_was_sampled() -> None:
    async def agent(policy: Policy) -> None:
        messages = [ChatMessage("system", "Be brief."), user("one")]
        messages += [await policy.say(*messages), user("two")]
        await policy.say(*messages)

    played = await play(agent)
    assert played.segments == [
        said("system", "Be brief.") + said("user", "one") + said("assistant", "answer 1") + said("user", "two")
        + f"{OPENER}answer 2<|im_end|>"
    ]  # fmt: skip
    completion = played.completion
    assert completion.loss_mask is not None
    ranges = [range(turn.start, turn.end) for turn in played.episode.turns]
    assert np.flatnonzero(completion.loss_mask).tolist() == [token for tokens in ranges for token in tokens]
    assert [message.content for message in played.episode.turns[0].observations] == ["two"]
    assert (completion.text, played.episode.stop_reason, played.episode.reward) == ("answer 2", "done", 1.0)


async def test_an_answer_that_the_client_trims_or_writes_anew_is_the_one_that_was_sampled() -> None:
    calls = []

    async def agent(policy: Policy) -> None:
        messages = [user("one")]
        answer = await policy.say(*messages, tools=(ADD,))
        calls.extend(answer.tool_calls)
        written = ChatMessage(
            "assistant",
            answer.content.strip(),
            tuple(type(call)("other-id", call.name, '{"text":  "1"}', call.status, "") for call in answer.tool_calls),
        )
        await policy.say(*messages, written, ChatMessage("tool", "2", tool_call_id="other-id"), tools=(ADD,))

    played = await play(agent, lambda turn: " so <add>1</add> " if turn == 1 else "done ")
    assert [(call.name, call.arguments_json, call.status) for call in calls] == [
        ("add", '{"text": "1"}', ToolCallStatus.OK)
    ]
    (whole,) = played.segments
    assert f"{OPENER} so <add>1</add> <|im_end|>\n{said('tool', '2')}{OPENER}done <|im_end|>" in whole


async def test_a_call_that_cannot_be_read_stays_text() -> None:
    async def agent(policy: Policy) -> None:
        answer = await policy.say(user("one"), tools=(ADD,))
        assert (answer.content, answer.tool_calls) == ("<add>1", ())
        await policy.say(user("one"), answer, user("two"), tools=(ADD,))

    played = await play(agent, lambda turn: "<add>1" if turn == 1 else "done")
    assert len(played.segments) == 1, played.segments
    assert played.episode.turns[0].message.tool_calls[0].status is ToolCallStatus.MALFORMED


@pytest.mark.parametrize(
    "second",
    [
        {"messages": (user("summary: answer 1"),)},
        {"messages": (user("one"), ChatMessage("assistant", "another answer"), user("two"))},
        {"messages": (user("one"), ChatMessage("assistant", "answer 1"), user("two")), "tools": (ADD,)},
        {"messages": (ChatMessage("system", "new"), user("one"), ChatMessage("assistant", "answer 1"), user("two"))},
    ],
)
async def test_another_context_begins_a_segment(second: dict[str, Any]) -> None:
    async def agent(policy: Policy) -> None:
        await policy.say(user("one"))
        await policy.say(*second["messages"], tools=second.get("tools", ()))

    played = await play(agent)
    first, other = played.segments
    assert first == f"{said('user', 'one')}{OPENER}answer 1<|im_end|>"
    assert other.endswith(f"{OPENER}answer 2<|im_end|>")
    ranges = [(segment.start, segment.end) for segment in played.episode.segments]
    assert ranges == [(0, ranges[0][1]), (ranges[0][1], played.completion.num_tokens)]
    assert [segment.messages for segment in played.episode.segments] == [(user("one"),), second["messages"]]


async def test_two_contexts_that_go_on_from_one_turn_train_it_once() -> None:
    async def agent(policy: Policy) -> None:
        messages = [user("one")]
        messages.append(await policy.say(*messages))
        await asyncio.gather(*(policy.say(*messages, user(f"way {number}")) for number in range(3)))

    played = await play(agent)
    ends = [len(segment.prompt_token_ids) for segment in played.episode.segments]
    assert len(played.segments) == 3 and ends[0] < ends[1] == ends[2]
    assert all(whole.count("answer 1") == 1 and whole.count("way") == 1 for whole in played.segments)
    assert len(played.episode.turns) == 4 and len(set(played.generators.seeds)) == 4
    assert played.generators.rooms == 1, "the turns of an episode are sampled on one generator"


async def test_tokens_go_on_from_the_most_tokens() -> None:
    begun: list[int] = TOKENIZER.encode("Begin: ", add_special_tokens=False)
    more: list[int] = TOKENIZER.encode(" more ", add_special_tokens=False)

    async def agent(policy: Policy) -> None:
        first = await policy.ask(tokens=begun)
        assert isinstance(first, PolicyAnswer) and first.num_context_tokens == len(begun)
        tokens = [*begun, *first.token_ids.tolist(), *more]
        second = await policy.ask(tokens=tokens)
        assert isinstance(second, PolicyAnswer)
        await policy.ask(tokens=[*tokens, *second.token_ids.tolist()])
        await policy.ask(tokens=tokens)  # Once more from there: a branch.
        await policy.ask(tokens=more)

    played = await play(agent)
    whole = "Begin: answer 1<|im_end|> more answer 2<|im_end|>"
    assert played.segments == [
        f"{whole}answer 3<|im_end|>", "Begin: answer 1<|im_end|> more answer 4<|im_end|>", " more answer 5<|im_end|>"
    ]  # fmt: skip
    assert [len(segment.messages) for segment in played.episode.segments] == [0, 0, 0]


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


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"messages": ()}, "neither messages nor tokens"),
        ({"messages": (user("a"), ChatMessage("assistant", "b"))}, "must not be the policy's own"),
        ({"messages": (user("a"),), "stop_strings": ("END",)}, "'END' is not among the run's sampling.stop_strings"),
        ({"messages": (user("a"),), "tools": (ADD, ADD)}, "2 tools are called 'add'"),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused_with_what_is_wrong(fields: dict[str, Any], detail: str) -> None:
    async def agent(policy: Policy) -> None:
        messages = fields["messages"]
        reply = await policy.ask(*messages, **{name: value for name, value in fields.items() if name != "messages"})
        assert isinstance(reply, PolicyRefusal) and reply.reason is RefusalReason.INVALID and detail in reply.detail, (
            reply
        )
        await policy.say(user("so"))

    played = await play(agent, max_turns=1)
    assert len(played.episode.turns) == 1, "what is refused counts as no turn"


async def test_an_agent_whose_every_call_is_refused_reaches_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_player, "_MAX_REFUSED", 5)

    async def agent(policy: Policy) -> None:
        replies = [await policy.ask() for _ in range(6)]
        assert isinstance(replies[-1], PolicyRefusal) and replies[-1].reason is RefusalReason.LIMIT

    played = await play(agent)
    assert (played.episode.stop_reason, played.episode.outcome) == ("max_turns", ScoreOutcome.UNSCORABLE)


async def test_a_call_in_a_pause_is_answered_when_the_run_goes_on() -> None:
    controls = RunControls()
    controls.pause()

    async def agent(policy: Policy) -> None:
        asked = asyncio.create_task(policy.ask(user("one")))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.done(), asked
        controls.resume()
        assert isinstance(await asked, PolicyAnswer), asked

    played = await play(agent, controls=controls)
    assert (played.num_plays, len(played.episode.turns)) == (1, 1)


async def test_a_long_pause_is_told_and_an_agent_that_gives_up_in_it_runs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_player, "_HOLD_S", 0.0)
    controls = RunControls()

    async def agent(policy: Policy) -> None:
        if controls.num_pauses == 4:
            await policy.say(user("one"))
            return
        controls.pause()
        reply = await policy.ask(user("one"))
        assert isinstance(reply, PolicyRefusal) and reply.reason is RefusalReason.PAUSED and reply.retry_after_s > 0
        controls.resume()
        raise RuntimeError("429")

    played = await play(agent, controls=controls, max_losses=1)
    assert played.num_plays == 5 and played.episode.outcome is ScoreOutcome.SCORED, "no loss is counted in a pause"


async def test_waiting_in_a_pause_reaches_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_player, "_MAX_REFUSED", 3)
    monkeypatch.setattr(agent_player, "_HOLD_S", 0.0)
    controls = RunControls()
    controls.pause()

    async def agent(policy: Policy) -> None:
        for _ in range(9):
            assert isinstance(await policy.ask(user("one")), PolicyRefusal)
        controls.resume()
        await policy.say(user("one"))

    played = await play(agent, controls=controls)
    assert (played.episode.stop_reason, len(played.episode.turns), played.num_plays) == ("done", 1, 1)


async def test_an_agent_that_breaks_runs_again_and_then_fails() -> None:
    async def agent(policy: Policy) -> None:
        await policy.say(user("one"))
        raise RuntimeError("oh")

    played = await play(agent, max_losses=2)
    assert played.num_plays == 2 and played.episode.outcome is ScoreOutcome.FAILED
    assert "oh" in played.episode.detail


@pytest.mark.parametrize("arguments", ['{"text": "\\ud800"}', "[1]", "none"])
async def test_arguments_of_which_no_text_can_be_made_are_refused_and_the_episode_goes_on(arguments: str) -> None:
    replies: list[Reply] = []

    async def agent(policy: Policy) -> None:
        history = ChatMessage("assistant", "", (ToolCall("c", "add", arguments, ToolCallStatus.OK, ""),))
        replies.append(await policy.ask(user("one"), history, ChatMessage("tool", "3", tool_call_id="c")))
        await policy.say(user("two"))

    played = await play(agent)
    assert isinstance(replies[0], PolicyRefusal) and replies[0].reason is RefusalReason.INVALID
    assert "arguments of the call of add" in replies[0].detail
    assert (played.episode.outcome, len(played.episode.turns)) == (ScoreOutcome.SCORED, 1)


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
    assert "turn_rewards name 'c1', which is no answer of the policy" in played.episode.detail


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
    assert played.episode.detail == "the agent read nothing that the policy said for training"


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
