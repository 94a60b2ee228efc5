"""Where the calls of an agent go on from, and what they must be."""

import asyncio
from typing import Any

import numpy as np
import pytest

from services.coordinator.rollout.episodes.messages import PolicyAnswer, PolicyRefusal, RefusalReason
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus
from shoal.scores import ScoreOutcome
from tests.support.played_agent import (
    ADD,
    OPENER,
    Policy,
    Reply,
    play,
    said,
    user,
)
from tests.support.turn_generators import TOKENIZER


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
        f"{whole}answer 3<|im_end|>", whole.replace("answer 2", "answer 4"), " more answer 5<|im_end|>"
    ]  # fmt: skip
    assert [len(segment.messages) for segment in played.episode.segments] == [0, 0, 0]


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"messages": ()}, "neither messages nor tokens"),
        ({"messages": (user("a"), ChatMessage("assistant", "b"))}, "must not have the role assistant"),
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


@pytest.mark.parametrize("arguments", ['{"text": "\\ud800"}', "[1]", "none", '{"a":' * 900 + "1" + "}" * 900])
async def test_arguments_of_which_no_text_can_be_made_are_refused_and_the_episode_goes_on(arguments: str) -> None:
    replies: list[Reply] = []

    async def agent(policy: Policy) -> None:
        history = ChatMessage("assistant", "", (ToolCall("c", "add", arguments, ToolCallStatus.OK, ""),))
        replies.append(await policy.ask(user("one"), history, ChatMessage("tool", "3", tool_call_id="c")))
        await policy.say(user("two"))

    played = await play(agent)
    assert isinstance(replies[0], PolicyRefusal) and replies[0].reason is RefusalReason.INVALID
    assert "add" in replies[0].detail
    assert (played.episode.outcome, len(played.episode.turns)) == (ScoreOutcome.SCORED, 1)
