import asyncio
import json
from typing import Any

import pytest

from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus, ToolDefinition
from shoal.environment import Environment, Observation, ToolError, Turn, Unscorable, tool


class Shop(Environment):
    """A shop."""

    def __init__(self) -> None:
        self.sold = 0

    @tool
    def buy(self, item: str, count: int = 1) -> str:
        """Buy something."""
        self.sold += count
        return f"{count} {item}"

    @tool
    async def price(self, item: str) -> dict[str, Any]:
        """Ask for a price."""
        await asyncio.sleep(0)
        return {"item": item, "price": 3}

    @tool
    def pay(self) -> Observation:
        """Pay, and leave."""
        return Observation("Thanks.", reward=1.0, done=True)

    @tool
    def steal(self) -> None:
        """Steal."""
        raise ToolError("you are seen")

    @tool
    def fall(self) -> None:
        """Fall."""
        raise KeyError("floor")

    @tool
    def wait(self) -> None:
        """Wait."""
        raise TimeoutError

    @tool
    def doubt(self) -> None:
        """Doubt."""
        raise Unscorable("nobody knows")


def call(name: str, status: ToolCallStatus = ToolCallStatus.OK, detail: str = "", **arguments: Any) -> ToolCall:
    return ToolCall("call-1", name, json.dumps(arguments), status, "", detail)


async def answer(*calls: ToolCall) -> Observation:
    observation = await Shop().step(Turn(1, "", calls))  # type: ignore[misc]
    assert isinstance(observation, Observation)
    return observation


def texts(observation: Observation) -> list[str]:
    assert isinstance(observation.messages, list)
    return [message.content for message in observation.messages if isinstance(message, ChatMessage)]


async def test_calls_are_answered_in_order_as_messages_of_their_tools() -> None:
    observation = await answer(call("buy", item="tea", count=2), call("price", item="tea"))
    assert isinstance(observation.messages, list)
    assert observation.messages[0] == ChatMessage("tool", "2 tea", tool_call_id="call-1", name="buy")
    assert texts(observation) == ["2 tea", '{"item": "tea", "price": 3}']
    assert [(outcome.name, outcome.ok) for outcome in observation.tool_outcomes] == [("buy", True), ("price", True)]
    assert (observation.reward, observation.done) == (None, False)


async def test_nothing_is_called_after_the_end() -> None:
    observation = await answer(call("pay"), call("buy", item="tea"))
    assert (texts(observation), observation.reward, observation.done) == (["Thanks."], 1.0, True)


@pytest.mark.parametrize(
    ("one", "says", "timed_out"),
    [
        (call("steal"), "error: you are seen", False),
        (call("fall"), "error: KeyError: 'floor'", False),
        (call("wait"), "error: wait took too long", True),
        (call("fly"), "error: there is no tool 'fly'", False),
        (call("buy", thing=1), "error: buy cannot be called so: ", False),
        (call("buy", ToolCallStatus.MALFORMED, "no brace"), "error: no brace", False),
        (ToolCall("c", "buy", "[1]", ToolCallStatus.OK, ""), "error: buy cannot be called so: ", False),
    ],
)
async def test_what_goes_wrong_with_a_call_is_told_to_the_policy(one: ToolCall, says: str, timed_out: bool) -> None:
    observation = await answer(one)
    assert texts(observation)[0].startswith(says), texts(observation)
    [outcome] = observation.tool_outcomes
    assert (outcome.ok, outcome.timed_out) == (False, timed_out)


async def test_a_tool_may_say_that_the_episode_cannot_be_judged() -> None:
    with pytest.raises(Unscorable):
        await answer(call("doubt"))


async def test_tools_may_be_listed_by_a_method_and_carried_out_by_step() -> None:
    class Remote(Environment):
        async def tools(self) -> list[ToolDefinition]:  # type: ignore[override]
            return [ToolDefinition("far", "Far away.", {"type": "object"})]

    tools = await Remote().listed_tools()
    assert {name: function for name, (_, function) in tools.items()} == {"far": None}


async def test_two_tools_of_one_name_are_refused() -> None:
    def buy() -> None: ...

    class Twice(Shop):
        tools = (buy,)

    with pytest.raises(ValueError, match="'buy'"):
        await Twice().listed_tools()


def test_an_environment_with_an_init_of_its_own_has_metrics_of_its_own() -> None:
    one, other = Shop(), Shop()
    one.metrics["x"] = 1.0
    assert (other.metrics, other.reward, other.detail, other.prompt) == ({}, None, "", ())
    assert other.offered_tools is None, "all are"
