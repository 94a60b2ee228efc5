"""Contract tests with the package textarena, in a Python of its own.

SHOAL_TEST_PYTHON_TEXTARENA names a Python that has the package.
"""

import psutil
import pytest

from shoal.v1 import rollout_pb2
from tests.support.environment_client import Player, staged
from tests.support.interpreters import interpreter_with


async def guesses(episode: Player, numbers: list[int]) -> list[str]:
    said = [(await episode.observe()).messages[0].content]
    for number in numbers:
        said.append((await episode.say(f"[{number}]")).messages[0].content)
    return said


async def test_a_game_of_the_real_package_is_played_in_another_python_and_again_after_a_kill() -> None:
    table = {
        "name": "textarena",
        "interpreter": interpreter_with("textarena"),
        "settings": {"options": {"max_turns": 9}},
    }
    async with staged() as stage:
        await stage.configure(table)
        assert not (await stage.listed())["textarena"].unavailable
        episode, same, other = (stage.play("textarena", seed=seed) for seed in (3, 3, 4))
        said = await guesses(episode, [1, 2])
        assert "between 1 and 20 within 9 turns" in said[0] and said[1:] == ["The target number is higher."] * 2
        assert await guesses(same, [1, 2]) == said
        await guesses(other, [1])
        (pid,) = stage.service.pids
        psutil.Process(pid).kill()
        found = None
        for number in range(3, 21):
            observation = await episode.say(f"[{number}]")
            if observation.done:
                found = observation
                break
        assert found is not None
        result = await episode.result()
        assert result.outcome == rollout_pb2.SCORE_OUTCOME_SCORED and 0 < found.reward <= 1


async def test_a_game_of_two_is_played_against_a_fixed_opponent() -> None:
    settings = {"game": "TicTacToe-v0", "num_players": 2, "opponent_pattern": r"\[\d\]"}
    table = {"name": "tictactoe", "source": "textarena", "settings": settings}
    async with staged() as stage:
        await stage.configure({**table, "interpreter": interpreter_with("textarena")})
        episode = stage.play("tictactoe", seed=5)
        assert "Available Moves" in (await episode.observe()).messages[0].content
        free = "012345678"
        while not (observation := await episode.say(f"[{free[0]}]")).done:
            said = observation.messages[0].content
            assert "Player 1: [" in said
            free = "".join(digit for digit in free if f"'[{digit}]'" in said.rpartition("Available Moves")[2])
        assert observation.reward in (-1, 0, 1)
        assert dict((await episode.result()).metrics)["invalid_move"] == 0


async def test_without_the_package_the_environment_is_unavailable_and_says_what_to_install() -> None:
    async with staged() as stage:
        await stage.configure({"name": "textarena"})
        unavailable = (await stage.listed())["textarena"].unavailable
        if not unavailable:
            pytest.skip("textarena is installed")
        assert "pip install textarena" in unavailable
