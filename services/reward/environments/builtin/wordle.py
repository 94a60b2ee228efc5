"""The environment `wordle`."""

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

from shoal.environment import Environment, InvalidTask, Observation, Turn

_GUESS = re.compile(r"<guess>(.*?)</guess>", re.DOTALL | re.IGNORECASE)
_LENGTH = 5
_GREEN, _YELLOW, _FORMAT = 0.2, 0.1, 0.2
_WORDS = Path(__file__).with_name("words.txt")


def feedback(guess: str, secret: str) -> str:
    """Returns G (right place), Y (other place) or X for each letter of a guess. A letter of the secret counts once."""
    left = [letter for letter, other in zip(secret, guess, strict=True) if letter != other]
    marks = []
    for letter, other in zip(guess, secret, strict=True):
        if letter == other:
            marks.append("G")
        elif letter in left:
            left.remove(letter)
            marks.append("Y")
        else:
            marks.append("X")
    return "".join(marks)


class Wordle(Environment):
    """A word of five letters that is to be guessed: the policy writes <guess>crane</guess> in each turn.

    The answer has G for a letter in its place, Y for one that is elsewhere in the word, X for one that is not. The last
    guess of a turn outside of its thoughts counts; it must have five letters, be in the dictionary, and not repeat an
    earlier guess.

    Task: {"word": "crane"}; without it the word is drawn from the seed. Rewards, as in open-instruct: 0.2 for each G,
    0.1 for each Y, plus format for a valid guess; 1 + 1 / turns + format for the word; 0 for an invalid guess. If an
    invalid guess ends the episode, the reward is that of the last valid guess, with the format of all turns. Format is
    0.2 times the share of turns with a guess in tags.

    The settings are `max_guesses` (6), `error_allowance` (1, invalid guesses in a row that do not end the episode) and
    `words_file` (a file of words, one a line, in place of the dictionary of some hundred words that comes with Shoal).

    Metrics: `guesses`, `invalid_attempts`, `solved`, `total_greens`, `total_yellows`.
    """

    is_deterministic = True

    def __init__(self, max_guesses: int = 6, error_allowance: int = 1, words_file: str = "") -> None:
        if max_guesses < 1 or error_allowance < 0:
            raise ValueError("max_guesses must be at least 1, and error_allowance at least 0")
        self._max_guesses, self._error_allowance = max_guesses, error_allowance
        self._words = _read_words(Path(words_file) if words_file else _WORDS)

    def reset(self, task: dict[str, Any], seed: int) -> str:
        word = task.get("word") or random.Random(seed).choice(sorted(self._words))
        if not isinstance(word, str) or len(word) != _LENGTH or not word.isalpha() or task.keys() - {"word"}:
            raise InvalidTask('give a word of five letters, {"word": "crane"}')
        self._secret = word.lower()
        self._guessed: list[str] = []
        self._num_errors = self._num_with_tag = 0
        self._last_marks = 0.0
        self.metrics |= {"guesses": 0, "invalid_attempts": 0, "solved": 0, "total_greens": 0, "total_yellows": 0}
        return (
            f"I think of a word of five letters. You have {self._max_guesses} guesses. Write each as "
            "<guess>word</guess>. I answer G for a letter in its place, Y for one in another place, X for one that the "
            "word does not have."
        )

    def step(self, turn: Turn) -> Observation:
        found = _GUESS.findall(turn.answer)
        self._num_with_tag += bool(found)
        form = _FORMAT * self._num_with_tag / turn.number
        guess = found[-1].strip().lower() if found else ""
        if wrong := self._what_is_wrong(guess, is_tagged=bool(found)):
            return self._invalid(wrong, form)
        self._num_errors = 0
        self._guessed.append(guess)
        marks = feedback(guess, self._secret)
        greens, yellows = marks.count("G"), marks.count("Y")
        self._last_marks = _GREEN * greens + _YELLOW * yellows
        self.metrics["guesses"] += 1
        self.metrics["total_greens"] += greens
        self.metrics["total_yellows"] += yellows
        said = f"{' '.join(guess.upper())}\n{' '.join(marks)}"
        if guess == self._secret:
            self.metrics["solved"] = 1
            return Observation(said, reward=1 + 1 / turn.number + form, done=True)
        is_last = len(self._guessed) == self._max_guesses
        end = f"\nThe word was {self._secret}." if is_last else ""
        return Observation(said + end, reward=self._last_marks + form, done=is_last)

    def _what_is_wrong(self, guess: str, *, is_tagged: bool) -> str:
        if not is_tagged:
            return "Write your guess as <guess>word</guess>."
        if len(guess) != _LENGTH or not guess.isalpha():
            return "A guess must have five letters."
        if guess in self._guessed:
            return f"You have guessed {guess} before."
        if guess != self._secret and guess not in self._words:
            return f"{guess} is not in the dictionary."
        return ""

    def _invalid(self, wrong: str, form: float) -> Observation:
        self.metrics["invalid_attempts"] += 1
        self._num_errors += 1
        if self._num_errors > self._error_allowance:
            return Observation(f"{wrong} The word was {self._secret}.", reward=self._last_marks + form, done=True)
        return Observation(wrong, reward=0.0)


@cache
def _read_words(file: Path) -> frozenset[str]:
    words = frozenset(word.lower() for word in file.read_text(encoding="utf-8").split() if len(word) == _LENGTH)
    if not words:
        raise ValueError(f"{file} has no word of five letters")
    return words
