"""Contract tests of the example server in Node.js: its episodes are those of any other environment."""

import re
from collections.abc import AsyncIterator

import pytest

from shoal.conversation import ChatMessage
from shoal.episodes.tool_calls import make_parser
from shoal.errors import InvalidArgument
from shoal.v1 import rollout_pb2
from shoal.wire.conversations import tool_from_wire
from tests.support.environment_client import Stage, staged, turn
from tests.support.node_server import GAME, missing_for_node_server, node_server

pytestmark = pytest.mark.skipif(bool(missing_for_node_server()), reason=missing_for_node_server())


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    with node_server() as address:
        async with staged() as stage:
            await stage.configure({"name": GAME, "server": address})
            yield stage


async def test_a_game_is_played_to_its_end(stage: Stage) -> None:
    info = (await stage.listed())[GAME]
    assert info.is_deterministic and "higher or lower" in info.description and not info.unavailable
    player = stage.play(GAME, {"number": 42})
    first = await player.observe()
    assert first.turn == 0 and "from 1 to 100" in first.messages[0].content
    low, high, none = [await player.say(text) for text in ("Is it 7?", "50 or 60", "I do not know")]
    assert [one.messages[0].content for one in (low, high, none)] == ["Higher.", "Lower.", "Say a whole number."]
    assert [one.turn for one in (low, high, none)] == [1, 2, 3] and not low.HasField("reward")
    right = await player.say("42")
    assert right.done and right.reward == pytest.approx(0.7)
    result = await player.result()
    assert result.outcome == rollout_pb2.SCORE_OUTCOME_SCORED and dict(result.metrics) == {"guesses": 4, "solved": 1}


async def test_calls_of_its_tool_are_carried_out_and_answered_until_the_game_ends(stage: Stage) -> None:
    (tool,) = map(tool_from_wire, (await stage.listed())[GAME].tools)
    number = {"type": "integer", "description": "a whole number"}
    assert (tool.name, tool.parameters["required"], tool.parameters["properties"]) == (
        "guess", ["number"], {"number": number},
    )  # fmt: skip
    parse = make_parser("tag")

    def said(number: int, text: str) -> ChatMessage:
        parsed = parse(text, (tool,), number)
        return ChatMessage("assistant", parsed.content, parsed.calls)

    player = await stage.begin(GAME, {"number": 42})
    low = await player.say(said(1, "<guess>7</guess> <guess>x</guess>"))
    texts = [(message.role, message.name, message.tool_call_id, message.content) for message in low.messages]
    assert texts[0] == ("tool", "guess", "call00101", "Higher."), texts
    assert texts[1][:3] == ("tool", "guess", "call00102") and texts[1][3].startswith("error: "), texts
    assert [outcome.ok for outcome in low.tool_outcomes] == [True, False] and not low.HasField("reward")
    right = await player.say(said(2, "<guess>42</guess> <guess>43</guess>"))
    assert right.done and right.reward == pytest.approx(0.9) and [m.content for m in right.messages] == ["Right."]
    assert (await player.result()).metrics["guesses"] == 2


async def test_an_episode_goes_on_behind_the_turns_that_were_played(stage: Stage) -> None:
    player = stage.play(GAME, {"number": 42}, replay=[turn(1, "7"), turn(2, "50")])
    last = await player.observe()
    assert (last.turn, last.messages[0].content) == (2, "Lower.")
    assert (await player.say("42")).reward == pytest.approx(0.8)


async def test_the_number_follows_from_the_seed_and_the_caller_may_end(stage: Stage) -> None:
    told = []
    for seed in (3, 3, 2**53 - 1):
        player = await stage.begin(GAME, {"highest": 1000}, seed=seed)
        answers = [await player.say("0") for _ in range(10)]
        assert answers[-1].done, "ten guesses are all"
        told.append(int(re.findall(r"\d+", answers[-1].messages[0].content)[-1]))
        assert (await player.result()).metrics["solved"] == 0
    assert told[0] == told[1] and all(1 <= number <= 1000 for number in told), told
    player = await stage.begin(GAME)
    assert (await player.finish()).outcome == rollout_pb2.SCORE_OUTCOME_SCORED


@pytest.mark.parametrize("task", [{"numbr": 4}, {"number": 101}, {"number": 1.5}, {"highest": "many"}])
async def test_a_task_that_is_none_is_invalid(stage: Stage, task: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=r"whole number|has no numbr"):
        await stage.play(GAME, task).observe()
