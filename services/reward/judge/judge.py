"""Completions judged by a language model: cache, concurrency limit and accounts around an endpoint."""

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.reward.common.http_endpoint import EndpointFailed, HttpEndpoint
from services.reward.common.text import clean, tagged_or_all
from services.reward.common.verdict import Unscorable
from services.reward.judge.labels import CRITERION, DEFAULT, JUDGED_LABELS, JudgedLabel, read_rubric, weighted
from services.reward.judge.reply import Reply, read_grade, read_reply
from services.reward.judge.templates import Template
from shoal.chat_templates.thoughts import without_thoughts
from shoal.config.tables.judge import JudgeConfig
from shoal.errors import InvalidArgument
from shoal.scores import ScoreOutcome, VerifierScore
from shoal.telemetry import names
from shoal.telemetry.metrics import counter

_MAX_DETAIL_CHARACTERS = 500


@dataclass(frozen=True)
class _Graded:
    """The verdict on one question."""

    value: float
    score: float
    reasoning: str
    input_tokens: int
    output_tokens: int
    has_usage: bool
    from_cache: bool = False


@dataclass
class JudgeCounts:
    """Counts since the creation of the judge."""

    num_questions: int = 0
    """Number of requested verdicts."""
    num_asked: int = 0
    """Number of questions sent to the endpoint. The other verdicts came from the cache or from a shared question."""
    num_open: int = 0
    """Number of questions that are now open at the endpoint."""
    most_open: int = 0
    """Largest number of questions that were open at once."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """The cost at the configured prices, including replies without a usable verdict."""


class Judge:
    """Scores completions with questions to a language model. Belongs to one event loop."""

    def __init__(self, config: JudgeConfig, keep_thoughts: Collection[str] = ()) -> None:
        """`keep_thoughts` has the labels whose judge also sees thoughts. Raises `InvalidArgument` if `config` names no
        endpoint, or a key that is not in the environment."""
        if not config.base_url:
            raise InvalidArgument(MISSING)
        self._config = config
        self._keep_thoughts = keep_thoughts
        self._http = HttpEndpoint(
            config, "/chat/completions", section="reward.judge", server="the judge", expected="chat completion"
        )
        custom = Template(config.template or DEFAULT.text, config.min_score, config.max_score)
        configured = {"llm_judge": replace(JUDGED_LABELS["llm_judge"], template=custom)}
        self._labels: Mapping[str, JudgedLabel] = {**JUDGED_LABELS, **configured}
        self._slots = asyncio.Semaphore(config.max_concurrent)
        self._cache: OrderedDict[bytes, _Graded] = OrderedDict()
        self._open: dict[bytes, asyncio.Task[_Graded]] = {}
        self._tasks: set[asyncio.Task[_Graded]] = set()
        self.counts = JudgeCounts()

    async def close(self) -> None:
        """Cancels open questions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.close()

    async def judge(self, verifier: str, question: str, completion: str, label: Any) -> VerifierScore:
        """Scores a completion. Never raises, except when canceled: an error is an outcome."""
        started = time.perf_counter()
        outcome, value = ScoreOutcome.FAILED, 0.0
        answer = tagged_or_all(completion if verifier in self._keep_thoughts else without_thoughts(completion))
        try:
            if verifier == "rubric":
                value, detail = await self._by_criteria(question, answer, label)
            else:
                judged = self._labels[verifier]
                values = judged.values(question, answer, label)
                graded = await self._grade(judged.template, values)
                value, detail = graded.value, self._detail(graded, judged.template)
            outcome = ScoreOutcome.SCORED
        except Unscorable as error:
            outcome, detail = ScoreOutcome.UNSCORABLE, str(error)
        except EndpointFailed as error:
            detail = f"the judge gave no answer: {error}"
        except Exception as error:
            detail = f"the judge raised {type(error).__name__}: {error}"
        detail = clean(detail)[:_MAX_DETAIL_CHARACTERS]
        return VerifierScore(verifier, outcome, value, detail, time.perf_counter() - started)

    def label_problem(self, verifier: str, label: Any) -> str:
        """Returns why the label cannot become a question; empty if it can."""
        try:
            if verifier == "rubric":
                read_rubric(label)
            else:
                judged = self._labels[verifier]
                judged.template.messages(judged.values(question="a question", answer="", label=label))
        except Unscorable as error:
            return str(error)
        return ""

    async def _by_criteria(self, question: str, answer: str, label: Any) -> tuple[float, str]:
        query, criteria = read_rubric(label)
        values = {"question": query or question, "answer": answer}
        graded = await asyncio.gather(
            *(self._grade(CRITERION, {**values, "rubric": criterion.description}) for criterion in criteria),
            return_exceptions=True,
        )
        # FAILED has precedence over UNSCORABLE, as between verifiers.
        broken = [one for one in graded if isinstance(one, BaseException)]
        for error in sorted(broken, key=lambda one: isinstance(one, Unscorable)):
            raise error
        found = [one for one in graded if isinstance(one, _Graded)]
        value = weighted(criteria, [one.value for one in found])
        parts = " ".join(f"{one.score:g}" for one in found)
        paid = [one for one in found if not one.from_cache]
        num_read, num_written = sum(one.input_tokens for one in paid), sum(one.output_tokens for one in paid)
        cost = self._cost(num_read, num_written)
        return value, f"criteria {parts} of 2; {num_read} tokens in, {num_written} out, cost {cost:.6g}"

    async def _grade(self, template: Template, values: Mapping[str, str]) -> _Graded:
        """Returns the verdict on one question: from the cache, from an equal open question, or from a new request."""
        self.counts.num_questions += 1
        messages = template.messages(values)
        key = _key(template, values)
        if (kept := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            counter(names.JUDGE_QUESTIONS).add(1, {names.SOURCE: "cache"})
            return replace(kept, from_cache=True)
        task = self._open.get(key)
        is_shared = task is not None
        if task is None:
            task = asyncio.create_task(self._ask(key, template, messages))
            self._tasks.add(task)
            if self._config.cache_size:
                self._open[key] = task
            task.add_done_callback(lambda ended: self._forget(key, ended))
        counter(names.JUDGE_QUESTIONS).add(1, {names.SOURCE: "cache" if is_shared else "endpoint"})
        try:
            # Others may wait for the task, so it continues when this call is canceled; its own deadlines end it.
            graded = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise EndpointFailed("the question was canceled, since the reward service closed the judge") from None
            raise
        return replace(graded, from_cache=is_shared)

    def _forget(self, key: bytes, task: asyncio.Task[_Graded]) -> None:
        self._tasks.discard(task)
        self._open.pop(key, None)
        if not task.cancelled():
            task.exception()  # Retrieve the error, even if nothing waits for the task any more.

    async def _ask(self, key: bytes, template: Template, messages: list[dict[str, str]]) -> _Graded:
        async with self._slots:
            self.counts.num_asked += 1
            self.counts.num_open += 1
            self.counts.most_open = max(self.counts.most_open, self.counts.num_open)
            try:
                reply = await self._http.ask(self._body(messages), read_reply)
            finally:
                self.counts.num_open -= 1
        self._account(reply)
        try:
            score, reasoning = read_grade(reply.text, template.lowest, template.highest)
        except Unscorable as error:
            cut = f"cut at reward.judge.max_tokens ({self._config.max_tokens}): " if reply.was_cut else ""
            raise Unscorable(f"{cut}{error}") from None
        graded = _Graded(
            template.value(score), score, reasoning, reply.input_tokens, reply.output_tokens, reply.has_usage
        )
        if self._config.cache_size:
            self._cache[key] = graded
            while len(self._cache) > self._config.cache_size:
                self._cache.popitem(last=False)
        return graded

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        config = self._config
        body: dict[str, Any] = {
            "model": config.model,
            "messages": messages,
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
        }
        return body | ({"response_format": {"type": "json_object"}} if config.json_mode else {})

    def _account(self, reply: Reply) -> None:
        cost = self._cost(reply.input_tokens, reply.output_tokens)
        self.counts.input_tokens += reply.input_tokens
        self.counts.output_tokens += reply.output_tokens
        self.counts.cost += cost
        counter(names.JUDGE_TOKENS).add(reply.input_tokens, {names.DIRECTION: "input"})
        counter(names.JUDGE_TOKENS).add(reply.output_tokens, {names.DIRECTION: "output"})
        counter(names.JUDGE_COST).add(cost)

    def _cost(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self._config.input_price + output_tokens * self._config.output_price) / 1e6

    def _detail(self, graded: _Graded, template: Template) -> str:
        if graded.from_cache:
            paid = "from the cache, cost 0"
        elif graded.has_usage:
            cost = self._cost(graded.input_tokens, graded.output_tokens)
            paid = f"{graded.input_tokens} tokens in, {graded.output_tokens} out, cost {cost:.6g}"
        else:
            paid = "the server did not report how many tokens it used, cost unknown"
        return f"SCORE {graded.score:g} of {template.lowest:g} to {template.highest:g}; {paid}; {graded.reasoning}"


def _key(template: Template, values: Mapping[str, str]) -> bytes:
    asked = json.dumps([template.text, template.lowest, template.highest, dict(sorted(values.items()))])
    return hashlib.sha256(asked.encode("ascii")).digest()


MISSING = (
    "reward.judge.base_url: the field is unset, and a label needs a judge; set the field to an OpenAI-compatible "
    'endpoint, such as "http://127.0.0.1:8000/v1", and reward.judge.model to the judge\'s name there'
)
"""The reason why labels that need a judge cannot be used."""
