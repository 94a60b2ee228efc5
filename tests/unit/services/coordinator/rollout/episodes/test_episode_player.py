"""One episode, played with a scripted policy and a scripted environment."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import numpy as np
import pytest

from services.coordinator.rollout.episodes import player
from services.coordinator.rollout.episodes.messages import BrokenEpisode, EpisodeResult, Observation, PolicyTurn
from services.coordinator.rollout.episodes.stage import Stages
from services.coordinator.rollout.episodes.stream import EnvironmentInfo, EnvironmentLost
from services.coordinator.workers import lost_work
from services.coordinator.workers.lost_work import WorkFailed
from shoal.config import parse_config
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.episodes.suffix import TurnRenderer
from shoal.errors import DeadlineExceeded, InvalidArgument
from shoal.rollout import Completion, EnvironmentTask, Episode, FinishReason, Prompt, ToolOutcome
from shoal.scores import ScoreOutcome
from tests.support import chat_templates as families
from tests.support.turn_generators import TOKENIZER, Generators, Says, play_group
from tests.support.wordings import has_all

ADD = ToolDefinition("add", "Adds.", {"type": "object", "properties": {"text": {"type": "string"}}})
SEARCH = ToolDefinition("search", "Finds.", {"type": "object", "properties": {"query": {"type": "string"}}})
CALL = "<add>1</add>"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_work, "FIRST_PAUSE_S", 0.0)


def told(*messages: str, done: bool = False, reward: float | None = None) -> Observation:
    said = tuple(ChatMessage("tool", message, name="add") for message in messages)
    return Observation(said, reward, done, tuple(ToolOutcome("add", True, False, 0.1) for _ in messages))


def answers_calls(turn: PolicyTurn) -> Observation:
    return told(*(f"Result {turn.number}" for _ in turn.message.tool_calls))


@dataclass
class Environments:
    """An environment that answers turns by a function, and breaks or is lost where it is told to."""

    answer: Callable[[PolicyTurn], Observation] = answers_calls
    first: Observation = field(default_factory=told)
    errors: dict[int, list[Exception]] = field(default_factory=dict)
    """Raised, one after the other, when a turn of that number comes; 0 is the start, -1 the end."""
    plays: list[list[int]] = field(default_factory=list)
    """The turns that each stream began with."""
    turns: list[PolicyTurn] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    hangs_at: int | None = None
    seeds: list[int] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def play(self, start: Any, replay: Sequence[PolicyTurn]) -> AsyncIterator[Any]:
        self.plays.append([turn.number for turn in replay])
        self.seeds.append(start.seed)
        yield SimpleNamespace(
            first=lambda: self._first(replay), answer=self._answer, end=self._end, result=lambda: self._end("")
        )

    async def _first(self, replay: Sequence[PolicyTurn]) -> Observation:
        self._fail(replay[-1].number if replay else 0)
        return self.answer(replay[-1]) if replay else self.first

    async def _answer(self, turn: PolicyTurn) -> Observation:
        self.turns.append(turn)
        self._fail(turn.number)
        if turn.number == self.hangs_at:
            await asyncio.Event().wait()
        return self.answer(turn)

    async def _end(self, reason: str) -> EpisodeResult:
        self._fail(-1)
        self.ends.append(reason)
        return EpisodeResult(ScoreOutcome.SCORED, 1.0, {"solved": 1.0}, "")

    def _fail(self, number: int) -> None:
        if self.errors.get(number):
            raise self.errors[number].pop(0)


@dataclass
class Played:
    completion: Completion
    episode: Episode
    text: str
    """The whole completion, special tokens included."""
    notes: list[str]


async def play(
    says: Says | Sequence[str],
    environments: Environments | None = None,
    *,
    generators: Generators | None = None,
    is_deterministic: bool = True,
    return_support: bool = False,
    max_completion_tokens: int = 1000,
    running_s: Callable[[], float] = lambda: 0.0,
    group_size: int = 1,
    tools: tuple[str, ...] | None = None,
    coordinator: dict[str, Any] | None = None,
    tokenizer: Any = None,
    **episodes: Any,
) -> Played:
    config = parse_config(
        {
            "model": {"path": "m"},
            "data": {"sources": [{"path": "d", "environment": "counter"}]},
            "sampling": {"max_completion_tokens": max_completion_tokens},
            "grpo": {"group_size": 2},
            "environments": [{"name": "counter", "server": "127.0.0.1:1"}],
            "coordinator": coordinator or {},
            "episodes": {"tool_parser": "tag", "tools_in_prompt": False} | episodes,
        }
    )
    script = says if callable(says) else lambda turn: says[min(turn, len(says)) - 1]
    generators = generators or Generators(script)
    generators.says = script
    messages = (ChatMessage("user", "Question"),)
    stages = Stages(config, tokenizer or TOKENIZER)
    await stages.open([EnvironmentInfo("counter", (ADD, SEARCH), is_deterministic, "")])
    task = EnvironmentTask("counter", {}, tools)
    stage = await stages.beside(lambda: stages.of(task))
    text = stage.renderer.prompt(messages)
    token_ids = np.array(TOKENIZER.encode(text, add_special_tokens=False), np.int32)
    prompt = Prompt("p:0", token_ids, text, (), messages, task)
    notes: list[str] = []
    pause = MagicMock(unpaused=AsyncMock(), sampling_for_training=contextlib.nullcontext, running_s=running_s)
    events = SimpleNamespace(add=lambda kind, message, episode: notes.append(message))
    scripted: Any = {"pause": pause, "generators": generators, "environments": environments or Environments()}
    seeds = range(100, 100 + group_size)
    completion, *_ = await play_group(
        config, stages, prompt, seeds=seeds, return_support=return_support, events=events, **scripted
    )
    assert completion.episode is not None
    return Played(completion, completion.episode, str(TOKENIZER.decode(completion.token_ids)), notes)


@pytest.mark.parametrize(
    ("tools", "statuses"),
    [
        (None, ["ok", "ok"]),
        (("add", "search"), ["ok", "ok"]),
        (("search",), ["unknown_tool", "ok"]),
        ((), ["unknown_tool", "unknown_tool"]),
    ],
)
async def test_a_tool_that_the_row_does_not_offer_is_refused(
    tools: tuple[str, ...] | None, statuses: list[str]
) -> None:
    environments = Environments()
    played = await play([f"{CALL} <search>K2</search>", "Well."], environments, tools=tools)
    calls = environments.turns[0].message.tool_calls
    assert [call.status.value for call in calls] == statuses
    assert ("'add'" in calls[0].detail) == (statuses[0] != "ok") == bool(calls[0].detail)
    assert played.episode.turns[0].message.tool_calls == calls and played.episode.stop_reason == "no_call"


async def test_the_prompt_shows_the_tools_that_the_row_offers() -> None:
    template = "{{ tools | map(attribute='function.name') | join(',') if tools else 'none' }};" + families.HERMES
    tokenizer = families.tokenizer_with(template)
    values = {"model": {"path": "m"}, "data": {"sources": [{"path": "d", "environment": "counter"}]}}
    stages = Stages(parse_config(values | {"environments": [{"name": "counter"}]}), tokenizer)
    await stages.open([EnvironmentInfo("counter", (ADD, SEARCH), True, "")])

    def prompt(tools: tuple[str, ...] | None) -> str:
        text = stages.of(EnvironmentTask("counter", {}, tools)).renderer.prompt([ChatMessage("user", "Q")])
        return text.partition(";")[0]

    shown = await stages.beside(lambda: [prompt(tools) for tools in (None, ("search",), (), ("search", "add"))])
    assert shown == ["add,search", "search", "none", "add,search"]
    stages.close()


@pytest.mark.parametrize(("template", "mark"), [(families.QWEN_THINKING, "<think>"), (families.HERMES, "")])
async def test_the_environment_and_the_record_know_the_thought_in_which_a_turn_begins(template: str, mark: str) -> None:
    environments = Environments()
    tokenizer = families.tokenizer_with(template)
    played = await play([f"Hm.</think>{CALL}", "It is 1."], environments, tokenizer=tokenizer)
    assert [turn.opened_thought for turn in environments.turns] == [mark, mark]
    assert [turn.opened_thought for turn in played.episode.turns] == [mark, mark]
    assert played.completion.text == "It is 1.", "the mark is not in the text"


async def test_the_tokens_are_what_the_policy_said_between_what_the_environment_said() -> None:
    played = await play([CALL, "It is 1."], Environments(first=told("Begin.")))
    assert played.text == (
        "<|im_start|>tool\nBegin.<|im_end|>\n<|im_start|>assistant\n"
        f"{CALL}<|im_end|>\n<|im_start|>tool\nResult 1<|im_end|>\n<|im_start|>assistant\nIt is 1.<|im_end|>"
    )
    completion = played.completion
    said = [TOKENIZER.decode(completion.token_ids[turn.start : turn.end]) for turn in played.episode.turns]
    assert said == [f"{CALL}<|im_end|>", "It is 1.<|im_end|>"]
    assert completion.loss_mask is not None
    ranges = [range(turn.start, turn.end) for turn in played.episode.turns]
    assert np.flatnonzero(completion.loss_mask).tolist() == [token for tokens in ranges for token in tokens]
    assert np.array_equal(np.isnan(completion.behavior_logprobs), ~completion.loss_mask)
    spans = [(str(span.version), span.start, span.end) for span in completion.version_spans]
    assert spans == [("0.0", ranges[0].start, ranges[0].stop), ("0.0", ranges[1].start, ranges[1].stop)]
    assert (completion.text, completion.finish_reason) == ("It is 1.", FinishReason.STOP)
    ended = played.episode.stop_reason, played.episode.reward, played.episode.metrics
    assert ended == ("no_call", 1.0, {"solved": 1})
    assert played.episode.turns[0].message.tool_calls[0].arguments_json == json.dumps({"text": "1"})


async def test_results_may_stand_in_the_policys_turn_which_goes_on_behind_them() -> None:
    generators, environments = Generators(lambda turn: "", stops=True), Environments()
    says = [f"I add. {CALL} never said", "1, and <add>2", "2."]
    played = await play(says, environments, generators=generators, inline_results="<output>{result}</output>")
    assert played.text == (f"<|im_start|>assistant\nI add. {CALL}<output>Result 1</output>1, and <add>2<|im_end|>")
    first, last = played.episode.turns
    assert [call.arguments_json for call in first.message.tool_calls] == [json.dumps({"text": "1"})]
    assert [message.content for message in first.observations] == ["Result 1"] and first.reward is None
    assert not last.message.tool_calls, "the policy ended this turn, so nothing answers what looks like a call in it"
    assert (played.episode.stop_reason, played.completion.text) == ("no_call", "1, and <add>2")
    assert played.completion.loss_mask is not None
    ranges = [range(turn.start, turn.end) for turn in played.episode.turns]
    assert np.flatnonzero(played.completion.loss_mask).tolist() == [token for tokens in ranges for token in tokens]


async def test_a_call_that_its_turn_had_no_tokens_for_is_answered_inline_too() -> None:
    played = await play(
        ["<add>12345", "Well."],
        Environments(),
        generators=Generators(lambda turn: "", stops=True),
        inline_results="<output>{result}</output>",
        max_turn_tokens=8,
    )
    (call,) = played.episode.turns[0].message.tool_calls
    assert call.status.value == "malformed" and played.text == (
        "<|im_start|>assistant\n<add>123<output>Result 1</output>Well.<|im_end|>"
    )


async def test_each_turn_is_sampled_behind_everything_before_it_with_a_seed_of_its_own() -> None:
    generators = Generators(lambda turn: "")
    played = await play([CALL, CALL, "1"], generators=generators)
    assert len(set(generators.seeds)) == 3 and [turn.seed for turn in played.episode.turns] == generators.seeds
    assert generators.rooms == 1, "an episode stays on its generator"
    whole = generators.contexts[0] + played.text[len("<|im_start|>assistant\n") :]
    for context in generators.contexts:
        assert whole.startswith(context), (context, whole)


async def test_a_turn_without_a_call_goes_on_as_long_as_the_environment_answers_it() -> None:
    game = Environments(lambda turn: Observation((ChatMessage("user", "Higher"),), 0.5, turn.number == 3, ()))
    played = await play(["50", "75", "88"], game)
    assert (len(played.episode.turns), played.episode.stop_reason, played.episode.is_truncated) == (3, "done", False)
    assert [turn.reward for turn in played.episode.turns] == [0.5] * 3 and game.ends == [""]


@pytest.mark.parametrize(
    ("last", "stop_reason", "num_sent"), [("It is 2.", "no_call", 3), (CALL, "max_turns", 2)], ids=["answers", "calls"]
)
async def test_after_the_last_turn_the_policy_may_answer_to_the_results_once(
    last: str, stop_reason: str, num_sent: int
) -> None:
    environments = Environments()
    played = await play([CALL, CALL, last], environments, max_turns=2)
    assert (len(played.episode.turns), played.episode.stop_reason) == (3, stop_reason)
    is_truncated = stop_reason == "max_turns"
    ended = played.episode.is_truncated, played.completion.finish_reason
    assert ended == (is_truncated, FinishReason.LENGTH if is_truncated else FinishReason.STOP)
    assert len(environments.turns) == num_sent and environments.ends == [stop_reason]


async def test_calls_beyond_the_limit_are_not_handed_over_and_the_policy_may_answer() -> None:
    environments = Environments()
    two = f"{CALL} {CALL}"
    played = await play([two, two, "Done"], environments, max_tool_calls=3)
    handed = [len(turn.message.tool_calls) for turn in environments.turns]
    assert sum(handed) <= 3 and played.episode.stop_reason == "no_call", (handed, played.episode.stop_reason)


async def test_an_observation_that_does_not_fit_ends_the_episode_and_is_kept_for_people_alone() -> None:
    environments = Environments(lambda turn: told("x" * 500))
    played = await play([CALL, "never"], environments, max_completion_tokens=200)
    assert (len(played.episode.turns), played.episode.stop_reason) == (1, "max_tokens")
    assert played.episode.is_truncated and played.episode.turns[0].observations[0].content == "x" * 500
    assert played.completion.num_tokens <= 200 and "xxx" not in played.text and environments.ends == ["max_tokens"]


async def test_a_turn_that_fills_the_episode_is_not_handed_over() -> None:
    environments = Environments()
    played = await play([CALL, "y" * 500], environments, max_completion_tokens=150)
    assert played.completion.num_tokens == 150 and played.episode.stop_reason == "max_tokens"
    assert [turn.number for turn in environments.turns] == [1]


async def test_a_turn_that_is_cut_at_its_own_limit_gets_its_end_of_turn_and_an_answer() -> None:
    game = Environments(lambda turn: Observation((ChatMessage("user", "Go on"),), None, turn.number == 2, ()))
    played = await play(["z" * 50, "w"], game, max_turn_tokens=10)
    assert "zzzzzzzzzz<|im_end|>\n<|im_start|>user\nGo on" in played.text
    first = played.episode.turns[0]
    assert (first.finish_reason, first.end - first.start) == (FinishReason.LENGTH, 10)
    assert game.turns[0].finish_reason is FinishReason.LENGTH and played.episode.stop_reason == "done"
    assert played.completion.loss_mask is not None and not played.completion.loss_mask[first.end]


async def test_first_words_that_leave_no_room_are_unscorable() -> None:
    played = await play(["1"], Environments(first=told("x" * 500)), max_completion_tokens=100)
    assert played.episode.outcome is ScoreOutcome.UNSCORABLE and not played.episode.turns, played.episode


async def test_a_lost_environment_that_is_not_deterministic_is_played_from_the_beginning() -> None:
    environments = Environments(errors={2: [EnvironmentLost("reward", "its process ended")]})
    played = await play([CALL, CALL, "2"], environments, is_deterministic=False)
    assert environments.plays == [[], []] and [turn.number for turn in environments.turns] == [1, 2, 1, 2, 3]
    assert played.text == (await play([CALL, CALL, "2"])).text


async def test_an_episode_that_waits_for_a_place_goes_on_where_it_was_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = [EnvironmentLost("reward", "full", is_loss=False, retry_after_s=0.25) for _ in range(3)]
    environments = Environments(errors={2: [EnvironmentLost("reward", "its process ended"), *full]})
    generators = Generators(lambda turn: "")
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    monkeypatch.setattr(player.asyncio, "sleep", sleep)
    played = await play([CALL, CALL, "2"], environments, generators=generators, max_losses=2)
    assert [wait_s for wait_s in waits if wait_s] == [0.25] * 3, waits
    assert len(played.notes) == 1 and len(environments.plays) == 5
    assert len(generators.seeds) == 3 and generators.rooms == 1, "no turn is sampled twice, nor elsewhere"
    assert played.text == (await play([CALL, CALL, "2"])).text


@pytest.mark.parametrize("number", [0, -1], ids=["at the start", "at the end"])
async def test_an_environment_that_is_lost_at_an_edge_of_the_episode_loses_nothing(number: int) -> None:
    environments = Environments(errors={number: [EnvironmentLost("reward", "gone")]})
    played = await play([CALL, "1"], environments)
    assert played.text == (await play([CALL, "1"])).text and len(environments.plays) == 2


async def test_an_episode_that_loses_its_environment_too_often_has_failed() -> None:
    environments = Environments(errors={1: [EnvironmentLost("reward", f"loss {n}") for n in range(5)]})
    played = await play([CALL, "1"], environments, max_losses=2)
    assert played.episode.outcome is ScoreOutcome.FAILED and len(environments.plays) == 2
    assert "loss 1" in played.episode.detail and played.episode.stop_reason == "failed"


async def test_losses_of_different_turns_do_not_add_up() -> None:
    lost = {turn: [EnvironmentLost("reward", "killed")] for turn in range(1, 6)}
    environments = Environments(errors=lost)
    played = await play([CALL, CALL, CALL, CALL, "5"], environments, max_losses=2)
    assert played.episode.outcome is ScoreOutcome.SCORED and len(environments.plays) == 6, played.episode
    assert played.text == (await play([CALL, CALL, CALL, CALL, "5"])).text


@pytest.mark.parametrize(("is_deterministic", "num_plays"), [(True, 1), (False, 2)])
async def test_an_environment_that_breaks_is_tried_again_only_where_it_may_do_otherwise(
    is_deterministic: bool, num_plays: int
) -> None:
    environments = Environments(errors={1: [BrokenEpisode("division by zero")]})
    played = await play([CALL, "1"], environments, is_deterministic=is_deterministic)
    assert len(environments.plays) == num_plays
    outcome = ScoreOutcome.FAILED if is_deterministic else ScoreOutcome.SCORED
    assert played.episode.outcome is outcome, played.episode


async def test_an_answer_that_the_chat_template_refuses_fails_its_episode_and_not_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> list[int]:
        raise InvalidArgument("model.chat_template: the template leaves out messages of the role 'wizard'")

    monkeypatch.setattr(TurnRenderer, "observation", refuse)
    environments = Environments(lambda turn: Observation((ChatMessage("wizard", "abracadabra"),), None, False, ()))
    episode = (await play([CALL, "1"], environments)).episode
    assert episode.outcome is ScoreOutcome.FAILED, episode
    assert has_all(episode.detail, "turn 1 ", "model.chat_template: "), episode.detail


async def test_lost_generators_of_different_turns_do_not_add_up() -> None:
    lost = {turn: [WorkFailed("generator", "killed")] * 2 for turn in range(1, 6)}
    generators = Generators(lambda turn: "", errors=lost)
    limit = {"max_group_losses": 3}
    played = await play([CALL, CALL, CALL, CALL, "5"], generators=generators, coordinator=limit)
    assert played.episode.outcome is ScoreOutcome.SCORED, (len(played.episode.turns), played.episode.detail)
    assert played.text == (await play([CALL, CALL, CALL, CALL, "5"])).text and generators.rooms == 11


@pytest.mark.parametrize(("num_reported", "outcome"), [(0, ScoreOutcome.FAILED), (4, ScoreOutcome.SCORED)])
async def test_a_turn_is_given_up_when_its_generators_die_again_and_again_at_the_same_token(
    num_reported: int, outcome: ScoreOutcome
) -> None:
    lost = {2: [WorkFailed("generator", f"death {number}") for number in range(1, 5)]}
    generators = Generators(lambda turn: "", errors=lost, num_reported=num_reported)
    limit = {"max_group_losses": 3}
    played = await play([CALL, CALL, "2"], generators=generators, coordinator=limit)
    assert played.episode.outcome is outcome, played.episode
    assert ("death 3" in played.episode.detail) is (outcome is ScoreOutcome.FAILED), played.episode.detail


async def test_an_episode_whose_turn_takes_too_long_has_failed_and_its_siblings_have_not() -> None:
    generators = Generators(lambda turn: "", errors={1: [DeadlineExceeded("not sampled within 600 s")]})
    played = await play([CALL, "1"], generators=generators, group_size=3)
    assert played.episode.outcome is ScoreOutcome.FAILED and played.episode.stop_reason == "timeout"


async def test_a_slow_environment_ends_its_episode_at_the_deadline_which_pauses_put_off() -> None:
    now = iter([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 5.0])  # The run stands still in between.
    environments = Environments(hangs_at=2)
    played = await play([CALL, CALL], environments, running_s=lambda: next(now, 5.0), timeout_s=0.1, call_timeout_s=0.1)
    assert played.episode.outcome is ScoreOutcome.FAILED and played.episode.stop_reason == "timeout"
    assert len(played.episode.turns) == 2 and played.episode.is_truncated


async def test_a_group_shares_what_its_environment_draws_and_nothing_else() -> None:
    environments, generators = Environments(), Generators(lambda turn: "")
    await play(["1"], environments, generators=generators, group_size=4)
    assert len(set(environments.seeds)) == 1 and len(set(generators.seeds)) == 4


async def test_with_supports_an_environment_token_is_its_own() -> None:
    played = await play([CALL, "1"], return_support=True)
    support, mask = played.completion.support, played.completion.loss_mask
    assert support is not None and mask is not None
    assert support.counts.tolist() == [2 if sampled else 1 for sampled in mask]
    firsts = np.cumsum(support.counts) - support.counts
    assert np.array_equal(support.token_ids[firsts], played.completion.token_ids)
