import importlib

import pytest

from services.reward.environments.builtin.counter import Counter
from services.reward.environments.builtin.registry import CLASSES
from services.reward.environments.builtin.toolbox import Toolbox
from services.reward.environments.builtin.wordle import Wordle
from shoal.conversation import ToolCallStatus
from shoal.environment import Turn
from tests.support.open_instruct_scripts import SCRIPTS, config_of_script
from tests.unit.services.reward.environments.builtin.test_mcp import PROGRAM
from tests.unit.services.reward.environments.builtin.turns import texts, turn
from tests.unit.services.reward.environments.builtin.web_server import web_server


async def test_each_call_goes_where_its_tool_is() -> None:
    async with web_server() as server:
        server.answers = [(200, {"results": [{"text": "K2"}]}), (200, {"text": "A mountain."})]
        toolbox = Toolbox(
            [
                {"source": "search", "base_url": server.address},
                {"source": "mcp", "command": PROGRAM, "tools": ["add"]},
                {"source": "browse", "base_url": server.address},
            ]
        )
        try:
            assert sorted(await toolbox.listed_tools()) == ["add", "browse", "search"]
            await toolbox.reset({}, 0)
            observation = await toolbox.step(
                turn(
                    ("search", {"query": "x"}), ("add", {"a": 1, "b": 2}), ("browse", {"url": "http://x"}), ("nix", {})
                )
            )
            assert texts(observation)[:3] == ["1.\nK2", "3", "A mountain."] and "'nix'" in texts(observation)[3]
            assert [outcome.ok for outcome in observation.tool_outcomes] == [True, True, True, False]
            bad = await toolbox.step(turn(("add", {}), status=ToolCallStatus.BAD_ARGUMENTS))
            assert texts(bad) == ["error: It is bad."]
        finally:
            await toolbox.close()


async def test_two_tools_of_one_name_are_refused_until_one_is_renamed() -> None:
    search = {"source": "search", "base_url": "http://127.0.0.1:9"}
    twice = Toolbox([search, search])
    with pytest.raises(ValueError, match="'search'"):
        await twice.listed_tools()
    await twice.close()
    renamed = Toolbox([search, search | {"tool": "papers"}])
    assert sorted(await renamed.listed_tools()) == ["papers", "search"]
    await renamed.close()


async def test_each_is_told_which_tools_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for game in (Counter, Wordle):
        monkeypatch.setattr(game, "reset", lambda self, task, seed: told.append(self.offered_tools))
    toolbox = Toolbox([{"source": "counter"}], environment={"source": "wordle"})
    await toolbox.reset({}, 0)
    toolbox.offered_tools = frozenset({"submit"})
    await toolbox.reset({}, 0)
    assert told == [None, None, {"submit"}, {"submit"}]


async def test_a_game_is_played_beside_the_tools() -> None:
    toolbox = Toolbox([{"source": "counter"}], environment={"source": "wordle"})
    assert sorted(await toolbox.listed_tools()) == ["decrement", "increment", "submit"]
    assert "five letters" in await toolbox.reset({"word": "crane"}, 0)
    called = await toolbox.step(turn(("increment", {}), ("increment", {})))
    assert called.reward == pytest.approx(-0.2) and not called.done
    guessed = await toolbox.step(Turn(2, "<guess>crane</guess>"))
    assert guessed.done and guessed.reward == pytest.approx(1 + 1 / 1 + 0.2), "a turn of calls is no turn of the game"
    assert toolbox.metrics["solved"] == 1 and toolbox.metrics["step_count"] == 2


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_environments_of_a_translated_script_take_their_settings(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.setenv(name, "a-key")
    for environment in config_of_script(script).environments:
        module = importlib.import_module(f"services.reward.environments.builtin.{environment.code}")
        assert getattr(module, CLASSES[environment.code])(**environment.settings)


async def test_the_end_that_a_tool_brings_is_the_end() -> None:
    toolbox = Toolbox([{"source": "counter", "target": 0}])
    await toolbox.reset({}, 0)
    over = await toolbox.step(turn(("submit", {}), ("increment", {})))
    assert over.done and over.reward == 1.0 and len(texts(over)) == 1
    assert (await Toolbox([{"source": "counter"}]).step(Turn(1, "Hello."))).messages == []
