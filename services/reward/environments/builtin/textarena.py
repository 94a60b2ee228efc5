"""The environment `textarena`."""

import contextlib
import importlib
import importlib.util
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.environment import Broken, Environment, InvalidTask, Observation, Turn

_MAX_MOVES = 1000
"""Maximum number of moves of opponents between two turns of the policy."""
_RAW = "-raw"
_PLAYER_ACTION = "PLAYER_ACTION"


class TextArena(Environment):
    """A game of the package `textarena`, which runs in a separate Python (`interpreter`).

    `game` is its name there, such as "GuessTheNumber-v0", and `options` are the options of the game. A task may replace
    both: {"game": ..., "options": {...}}. The game says its rules, then what happened since the policy's last move. A
    move is the text of a turn without its thoughts. If a game has several players (`num_players`, by default 1), the
    policy is the first. The others say the texts of `opponent_says` in order, over and over, or a random text that
    matches `opponent_pattern`, such as "\\\\[\\\\d\\\\]", in the last message that the game sent them.

    The game decides the reward.

    Metrics: `turns`, `invalid_move` (whether an invalid move of the policy ended the game).
    """

    def __init__(
        self,
        game: str = "GuessTheNumber-v0",
        options: Mapping[str, Any] | None = None,
        num_players: int = 1,
        opponent_says: Sequence[str] = (),
        opponent_pattern: str = "",
        is_deterministic: bool = True,
    ) -> None:
        if num_players < 1:
            raise ValueError(f"num_players must be at least 1 (given: {num_players})")
        if (num_players > 1) != (bool(opponent_says) + bool(opponent_pattern) == 1):
            raise ValueError("give one of opponent_says and opponent_pattern if num_players is above 1, else none")
        self.is_deterministic = is_deterministic
        self._game, self._options, self._num_players = game, dict(options or {}), num_players
        self._opponent_says, self._opponent_pattern = list(opponent_says), re.compile(opponent_pattern)
        self._played: Any = None

    def unavailable(self) -> str:
        if importlib.util.find_spec("textarena") is None:
            return "textarena is not installed in this Python: pip install textarena, or name another interpreter"
        if self._game not in _games():
            return f"textarena has no game {self._game!r}; it has, for example, {', '.join(sorted(_games())[:5])}"
        return ""

    def reset(self, task: dict[str, Any], seed: int) -> str:
        """Begins the game; returns its rules."""
        game, options = task.get("game", self._game), task.get("options", self._options)
        if task.keys() - {"game", "options"} or not isinstance(options, dict) or game not in _games():
            raise InvalidTask('give {"game": name, "options": {...}} with a game that textarena has, or nothing')
        self.metrics |= {"turns": 0, "invalid_move": 0}
        self._opponent, self._num_said = random.Random(seed), 0
        self._randomness = random.Random(seed).getstate()
        raw = game if game.endswith(_RAW) else f"{game}{_RAW}"
        with self._own_randomness():
            textarena = importlib.import_module("textarena")
            self._played = textarena.make(raw if raw in _games() else game, **options)
            self._played.reset(num_players=self._num_players, seed=seed)
            return self._heard() or ""

    def step(self, turn: Turn) -> Observation:
        """Makes a move. Returns the events until the policy's next move."""
        self.metrics["turns"] = turn.number
        with self._own_randomness():
            done, _ = self._played.step(action=turn.answer)
            said = None if done else self._heard()
            if said is not None:
                return Observation(said)
            return self._ending()

    def close(self) -> None:
        self._played = None

    def _heard(self) -> str | None:
        """Lets the other players move until the policy's turn. Returns the messages for the policy; None at the end."""
        for _ in range(_MAX_MOVES):
            player, messages = self._played.get_observation()
            if player == 0:
                return _written(messages)
            done, _ = self._played.step(action=self._move_of_opponent(messages))
            if done:
                return None
        raise Broken(f"the other players made {_MAX_MOVES} moves in a row")

    def _move_of_opponent(self, messages: Any) -> str:
        if self._opponent_says:
            self._num_said += 1
            return self._opponent_says[(self._num_said - 1) % len(self._opponent_says)]
        last = messages if isinstance(messages, str) else messages[-1][1] if messages else ""
        found = [match[0] for match in self._opponent_pattern.finditer(last)]
        return self._opponent.choice(found) if found else ""

    def _ending(self) -> Observation:
        rewards, info = self._played.close()
        mine = info.get(0, {})
        self.metrics["invalid_move"] = bool(mine.get("invalid_move"))
        reward = (rewards or {}).get(0)
        if reward is None:
            raise Broken("the game ended without a reward")
        return Observation(str(mine.get("reason") or ()), reward=float(reward), done=True)

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Gives this game its own state of Python's random numbers, from which all games of a process draw."""
        outside = random.getstate()
        random.setstate(self._randomness)
        try:
            yield
        finally:
            self._randomness = random.getstate()
            random.setstate(outside)


def _games() -> Mapping[str, Any]:
    return importlib.import_module("textarena.envs.registration").ENV_REGISTRY  # type: ignore[no-any-return]


def _written(messages: Any) -> str:
    """Returns the messages of the game and of the other players as text."""
    if isinstance(messages, str):
        return messages
    said = []
    for speaker, text, kind in messages:
        if kind.name == _PLAYER_ACTION and speaker == 0:
            continue
        said.append(f"Player {speaker}: {text}" if kind.name == _PLAYER_ACTION else text)
    return "\n".join(said)
