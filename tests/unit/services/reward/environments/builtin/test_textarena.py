"""The environment `textarena` with a stand-in; tests/contract/environments/test_textarena.py has the package."""

import enum
import random
import sys
import types
from typing import Any

import pytest

from services.reward.environments.builtin.textarena import TextArena
from shoal.environment import Broken, InvalidTask, Observation, Turn

Kind = enum.Enum("Kind", ["PROMPT", "PLAYER_ACTION", "GAME_MESSAGE"])


class Dice:
    """Each player in turn says a text; the game draws a number. "stop" ends it with the sum, "bad" as invalid."""

    def __init__(self, highest: int = 1000, is_paid: bool = True) -> None:
        self.highest, self.is_paid = highest, is_paid

    def reset(self, num_players: int, seed: int) -> None:
        random.seed(seed)
        self.num_players, self.player, self.drawn = num_players, 0, 0
        self.messages: dict[int, list[Any]] = {
            player: [(-1, f"You are {player}.", Kind.PROMPT)] for player in range(num_players)
        }
        self.info: dict[int, dict[str, Any]] = {player: {"invalid_move": False} for player in range(num_players)}
        self.rewards: dict[int, float] | None = None

    def get_observation(self) -> tuple[int, list[Any]]:
        messages, self.messages[self.player] = self.messages[self.player], []
        return self.player, messages

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.drawn += random.randint(1, self.highest)
        for heard in self.messages.values():
            heard += [(self.player, action, Kind.PLAYER_ACTION), (-1, f"Say [{self.drawn}]", Kind.GAME_MESSAGE)]
        if action in ("stop", "bad"):
            self.rewards = {0: float(self.drawn)} if self.is_paid else None
            self.info[0] = {"invalid_move": action == "bad", "reason": f"It said {action}."}
            return True, {}
        self.player = (self.player + 1) % self.num_players
        return False, {}

    def close(self) -> tuple[Any, Any]:
        return self.rewards, self.info


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    textarena, registration = types.ModuleType("textarena"), types.ModuleType("textarena.envs.registration")
    textarena.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    registration.ENV_REGISTRY = {"Dice-v0": 1, "Dice-v0-raw": 1}  # type: ignore[attr-defined]
    textarena.make = lambda name, **options: {"Dice-v0-raw": Dice}[name](**options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "textarena", textarena)
    monkeypatch.setitem(sys.modules, "textarena.envs", types.ModuleType("textarena.envs"))
    monkeypatch.setitem(sys.modules, "textarena.envs.registration", registration)


def played(environment: TextArena, *texts: str) -> list[Observation]:
    return [environment.step(Turn(number, text)) for number, text in enumerate(texts, start=1)]


def test_the_policy_reads_the_rules_then_what_happens_and_gets_the_reward_of_the_game() -> None:
    environment = TextArena("Dice-v0")
    assert environment.unavailable() == "" and environment.reset({}, 7) == "You are 0."
    first, last = played(environment, "x", "stop")
    assert str(first.messages).startswith("Say [") and first.reward is None and not first.done
    assert last.messages == "It said stop." and last.done
    assert environment.metrics == {"turns": 2, "invalid_move": 0}
    environment.reset({"options": {"highest": 1}}, 7)
    (bad,) = played(environment, "bad")
    assert bad.reward == 1.0 and environment.metrics["invalid_move"] == 1


def test_games_that_are_played_at_once_draw_what_they_draw_alone() -> None:
    alone = TextArena("Dice-v0")
    alone.reset({}, 7)
    wanted = played(alone, "a", "b", "stop")
    first, second = TextArena("Dice-v0"), TextArena("Dice-v0")
    first.reset({}, 7)
    second.reset({}, 8)
    random.seed(0)
    before = random.getstate()
    mixed = [environment.step(Turn(1, text)) for text in ("a", "b", "stop") for environment in (first, second)]
    assert mixed[::2] == wanted and mixed[1::2] != wanted
    assert random.getstate() == before, "the process's own random numbers are as before"


def test_other_players_say_what_they_are_told_to_or_find_their_moves_in_what_they_are_told() -> None:
    environment = TextArena("Dice-v0", num_players=3, opponent_says=["left", "right"], options={"highest": 1})
    environment.reset({}, 7)
    (first,) = played(environment, "mine")
    assert first.messages == "Say [1]\nPlayer 1: left\nSay [2]\nPlayer 2: right\nSay [3]"
    environment = TextArena("Dice-v0", num_players=2, opponent_pattern=r"\[\d+\]", options={"highest": 1})
    environment.reset({}, 7)
    (first,) = played(environment, "mine")
    assert first.messages == "Say [1]\nPlayer 1: [1]\nSay [2]"
    environment = TextArena("Dice-v0", num_players=2, opponent_says=["stop"])
    environment.reset({}, 7)
    assert played(environment, "mine")[0].done, "another player ends the game"


def test_a_game_without_a_reward_fails_the_episode() -> None:
    environment = TextArena("Dice-v0", options={"is_paid": False})
    environment.reset({}, 7)
    with pytest.raises(Broken, match="without a reward"):
        played(environment, "stop")


@pytest.mark.parametrize("task", [{"game": "Chess-v9"}, {"options": 3}, {"level": 2}])
def test_tasks_that_are_none_are_refused(task: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="game"):
        TextArena("Dice-v0").reset(task, 0)


def test_a_game_that_the_package_does_not_have_makes_the_environment_unavailable() -> None:
    why = TextArena("Chess-v9").unavailable()
    assert "'Chess-v9'" in why and "Dice-v0" in why
