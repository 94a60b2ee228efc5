import asyncio
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from services.reward.environments.builtin.calculator import Calculator
from services.reward.environments.builtin.counter import Counter
from services.reward.environments.builtin.guess_number import GuessNumber
from services.reward.environments.builtin.wordle import Wordle, feedback
from services.reward.environments.inside.answers import observation_of
from shoal.config.tables.data import SourceConfig
from shoal.conversation import ToolCall, ToolCallStatus
from shoal.data.tasks import make_task
from shoal.environment import Environment, Turn

STATUS = ToolCallStatus.OK


def call(name: str, status: ToolCallStatus = STATUS, **arguments: Any) -> ToolCall:
    return ToolCall("c", name, json.dumps(arguments), status, "", "it is bad" if status is not STATUS else "")


class Game:
    def __init__(
        self, environment: Environment, task: dict[str, Any] | None = None, seed: int = 0, opened_thought: str = ""
    ) -> None:
        self.environment = environment
        self._opened_thought = opened_thought
        self.first = self._observed(environment.reset(task or {}, seed))
        self._number = 0

    def say(self, text: str = "", *calls: ToolCall) -> dict[str, Any]:
        self._number += 1
        turn = Turn(self._number, text, calls, opened_thought=self._opened_thought)
        return self._observed(self.environment.step(turn))

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        return self.say("", call(name, **arguments))

    @staticmethod
    def _observed(value: Any) -> dict[str, Any]:
        if inspect.isawaitable(value):

            async def awaited() -> Any:
                return await value

            value = asyncio.run(awaited())
        return observation_of(value, 10_000)


def text(observation: dict[str, Any]) -> str:
    return "\n".join(message["content"] for message in observation["messages"])


THOUGHT = "<think>Say <guess>crane</guess>, or <calc>12*34</calc>? That is 408.</think>"


@pytest.mark.parametrize("thought", [THOUGHT, THOUGHT.removeprefix("<think>"), THOUGHT.removesuffix("</think>")])
def test_a_guess_in_a_thought_is_none(thought: str) -> None:
    is_open = not thought.endswith("</think>")
    wordle = Game(Wordle(), {"word": "crane"})
    assert "Write your guess as" in text(wordle.say(thought)), wordle.environment.metrics
    if not is_open:
        assert wordle.say(f"{thought} <guess>crane</guess>")["done"]
    calculator = Game(Calculator(), {"a": 12, "b": 34})
    called = calculator.say(thought)
    assert called["done"] and not calculator.environment.metrics["called"], called
    calculator = Game(Calculator(), {"a": 12, "b": 34})
    calculator.say("<calc>12*34</calc>")
    assert calculator.say(thought)["reward"] == 0.0 and not calculator.environment.metrics["solved"]


def test_a_guess_in_a_thought_that_the_template_begins_and_nothing_ends_is_none() -> None:
    wordle = Game(Wordle(), {"word": "crane"}, opened_thought="<think>")
    assert "Write your guess as" in text(wordle.say("Say <guess>crane</guess>?")), wordle.environment.metrics
    assert wordle.say("Say it.</think> <guess>crane</guess>")["done"]
    calculator = Game(Calculator(), {"a": 12, "b": 34}, opened_thought="<think>")
    assert calculator.say("<calc>12*34</calc>")["done"] and not calculator.environment.metrics["called"]


@pytest.mark.parametrize(
    ("turns", "rewards", "metrics"),
    [
        (("<calc>12*34</calc>", "It is 408."), [0.2, 0.8], (1, 1, 1)),
        (("so <calc> 34 * 12 </calc> it is", "408"), [0.2, 0.8], (1, 1, 1)),
        (("<calc>12*34</calc>", "It is 1408."), [0.2, 0.0], (1, 1, 0)),
        (("<calc>12+34</calc>", "408"), [0.0, 0.0], (1, 0, 0)),
        (("<calc>12*33</calc>", "408"), [0.0, 0.0], (1, 0, 0)),
        (("408",), [0.0], (0, 0, 0)),
        (("<calc>12*34",), [0.0], (0, 0, 0)),
    ],
)
def test_the_calculator_pays_for_the_call_and_for_the_result(
    turns: Sequence[str], rewards: list[float], metrics: tuple[int, ...]
) -> None:
    game = Game(Calculator(), {"a": 12, "b": 34})
    observations = [game.say(turn) for turn in turns]
    assert [observation["reward"] for observation in observations] == pytest.approx(rewards)
    assert [observation["done"] for observation in observations] == [False] * (len(turns) - 1) + [True]
    assert tuple(game.environment.metrics[name] for name in ("called", "right_call", "solved")) == metrics


def test_the_calculator_draws_and_asks_where_there_is_no_task() -> None:
    first, again, other = (Game(Calculator(), seed=seed).first for seed in (1, 1, 2))
    assert text(first) == text(again) != text(other)
    assert text(first).startswith("What is ")


def test_the_counter_pays_as_open_instruct_does() -> None:
    game = Game(Counter(), {"target": 2})
    assert "Move it to 2" in text(game.first)
    rewards = [game.call(name)["reward"] for name in ("increment", "increment", "increment", "decrement")]
    last = game.call("submit")
    assert [*rewards, last["reward"]] == [-0.1] * 4 + [1.0] and last["done"]
    assert game.environment.metrics == {"step_count": 5, "final_value": 2, "reached_target": 1}


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        (None, "Move it to 5, then submit it."),
        ({"increment", "submit"}, "Move it to 5, then submit it."),
        ({"increment"}, "Move it to 5."),
    ],
)
def test_a_counter_asks_for_no_tool_that_the_policy_is_not_offered(offered: set[str] | None, words: str) -> None:
    counter = Counter()
    counter.offered_tools = None if offered is None else frozenset(offered)
    assert text(Game(counter).first).endswith(f" 0. {words}")


def test_a_counter_without_a_task_has_the_target_of_the_settings_and_a_wrong_submit_costs() -> None:
    game = Game(Counter(target=3))
    assert "Move it to 3" in text(game.first)
    assert game.call("submit")["reward"] == -0.5


def test_an_unknown_tool_is_told_and_costs_nothing() -> None:
    said = Game(Counter()).say("", call("fly", ToolCallStatus.UNKNOWN_TOOL))
    assert (text(said), said["reward"], said["done"]) == ("error: it is bad", None, False)


def test_a_guess_pays_by_its_distance_and_the_number_ends_the_game() -> None:
    game = Game(GuessNumber(), {"number": 42})
    low = game.call("guess", number=2)
    assert "higher" in text(low) and low["reward"] == pytest.approx(1 - 40 / 99)
    assert "lower" in text(game.call("guess", number=50))
    assert game.call("guess", number=1000)["reward"] == 0.0
    hit = game.call("guess", number=42)
    assert (hit["reward"], hit["done"], game.environment.metrics) == (1.0, True, {"guesses": 4, "solved": 1})


def test_the_last_guess_ends_the_game() -> None:
    game = Game(GuessNumber(max_val=9, max_guesses=2), {"number": 4})
    assert text(game.first).endswith("You have 2 guesses.")
    assert not game.call("guess", number=9)["done"]
    last = game.call("guess", number=3)
    assert "higher" in text(last) and (last["reward"], last["done"]) == (pytest.approx(1 - 1 / 8), True)
    assert game.environment.metrics == {"guesses": 2, "solved": 0}


def test_without_partial_credit_only_the_number_pays() -> None:
    game = Game(GuessNumber(max_val=9, partial_credit=False), {"number": 4})
    assert [game.call("guess", number=number)["reward"] for number in (3, 4)] == [0.0, 1.0]


def test_the_examples_of_the_task_are_games_as_the_environment_plays_them() -> None:
    (row,) = make_task(SourceConfig(task="guessing", task_size=1, environment="guess_number")).rows
    said = [message["content"] for message in row.values["messages"] if message["role"] != "system"]
    for number, first in ((1, 0), (4, 5)):
        game = Game(GuessNumber(max_val=5, max_guesses=3), {"number": number})
        played = [text(game.first), "3", text(game.call("guess", number=3))]
        played += [str(number), text(game.call("guess", number=number))]
        assert said[first : first + 5] == played


def test_a_guess_that_is_no_whole_number_costs() -> None:
    game = Game(GuessNumber())
    assert game.call("guess", number="ten")["reward"] == -0.1
    assert game.say("", call("guess", ToolCallStatus.BAD_ARGUMENTS, number="ten"))["reward"] == -0.1


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("crane", "crane", "GGGGG"),
        ("speed", "abide", "XXYXY"),
        ("allee", "apple", "GYXXG"),
        ("eerie", "crane", "XXYXG"),
        ("aabbb", "ccaad", "YYXXX"),
    ],
)
def test_each_letter_of_the_secret_is_marked_once(guess: str, secret: str, marks: str) -> None:
    assert feedback(guess, secret) == marks


def test_a_word_pays_for_letters_and_more_for_the_word() -> None:
    game = Game(Wordle(), {"word": "crane"})
    first = game.say("I try <guess>apple</guess>, no: <guess>Grape</guess>")
    assert text(first) == "G R A P E\nX G G X G"
    assert first["reward"] == pytest.approx(3 * 0.2 + 0.2)
    solved = game.say("<guess>crane</guess>")
    assert (solved["reward"], solved["done"]) == (pytest.approx(1 + 1 / 2 + 0.2), True)
    assert game.environment.metrics["total_greens"] == 3 + 5


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("crane", "Write your guess as"),
        ("<guess>cranes</guess>", "must have five letters"),
        ("<guess>12345</guess>", "must have five letters"),
        ("<guess>qqqqq</guess>", "not in the dictionary"),
        ("<guess>apple</guess>", "apple before"),
    ],
)
def test_an_invalid_guess_is_told_and_the_second_in_a_row_ends_the_game(said: str, why: str) -> None:
    game = Game(Wordle(), {"word": "crane"})
    game.say("<guess>apple</guess>")  # One yellow a, and a green e: 0.3.
    invalid = game.say(said)
    assert why in text(invalid) and (invalid["reward"], invalid["done"]) == (0.0, False)
    end = game.say(said)
    with_tag = 3 if "<guess>" in said else 1
    assert (end["reward"], end["done"]) == (pytest.approx(0.3 + 0.2 * with_tag / 3), True)


def test_the_last_guess_ends_the_game_with_its_marks() -> None:
    game = Game(Wordle(max_guesses=1), {"word": "crane"})
    end = game.say("<guess>apple</guess>")
    assert (end["reward"], end["done"]) == (pytest.approx(0.3 + 0.2), True)
    assert "The word was crane." in text(end)


def test_a_dictionary_of_ones_own_is_used(tmp_path: Path) -> None:
    file = tmp_path / "words"
    file.write_text("qqqqq\nabc\n")
    game = Game(Wordle(words_file=str(file)))
    assert game.say("<guess>qqqqq</guess>")["done"]
