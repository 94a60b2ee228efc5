"""Scorers whose verifiers run in the pool: the rules that come with Shoal, and custom verifiers."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from services.reward.common.scorer import ListedVerifier, token_ids, whole_text
from services.reward.custom.code import CustomVerifier, Unusable
from services.reward.custom.custom_verifiers import (
    SHOWN_DIGITS,
    configured_codes,
    installed_codes,
    new_versions,
    read_code,
    tried,
)
from services.reward.custom.probe import probe
from services.reward.pool.pool import VerifierPool
from services.reward.verifiers.registry import ALL_VERIFIERS, VERIFIERS
from shoal.chat_templates.template_messages import for_template
from shoal.config.tables.custom_verifiers import CustomVerifierConfig
from shoal.errors import FieldViolation, InvalidArgument
from shoal.rollout import GroundTruth, Prompt
from shoal.scores import ScoreOutcome, VerifierScore
from shoal.v1 import rollout_pb2
from shoal.wire import finish_reason_from_wire, int32_from_wire

_log = logging.getLogger(__name__)


class RuleScorer:
    """The verifiers of `services/reward/verifiers`. Starts and closes the pool."""

    def __init__(self, pool: VerifierPool, keep_thoughts: Collection[str] = ()) -> None:
        """`keep_thoughts` is the field of `reward`."""
        self._pool = pool
        self._keep_thoughts = keep_thoughts
        self.names: Collection[str] = ALL_VERIFIERS.keys()

    def unavailable(self, name: str) -> str:
        return ALL_VERIFIERS[name].missing_package

    async def start(self) -> None:
        await self._pool.start()

    async def close(self) -> None:
        await self._pool.close()

    async def score(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        reads = VERIFIERS[truth.verifier].reads
        is_cut = reads == "answer" and truth.verifier not in self._keep_thoughts
        text = whole_text(prompt, completion) if is_cut else completion.text
        tokens = token_ids(completion) if reads in ("num_tokens", "token_ids") else ()
        can_stop = VERIFIERS[truth.verifier].can_stop
        return await self._pool.judge(
            truth.verifier, text, truth.label, tokens, group=prompt.prompt_id, can_stop=can_stop
        )

    async def label_problem(self, truth: GroundTruth) -> str:
        # Verifiers read their label before the completion, so judging an empty completion checks the label.
        judged = await self._pool.judge(truth.verifier, "", truth.label)
        return "" if judged.outcome is ScoreOutcome.SCORED else judged.detail

    async def describe(self) -> Sequence[ListedVerifier]:
        # Looking for a sandbox takes a second.
        return await asyncio.gather(*(asyncio.to_thread(_listed, name) for name in ALL_VERIFIERS))


def _listed(name: str) -> ListedVerifier:
    verifier = ALL_VERIFIERS[name]
    why = verifier.missing_package or verifier.unavailable()
    return ListedVerifier(name, verifier.reads, verifier.description, why)


class CustomScorer:
    """The custom verifiers of a configuration and of installed packages. Takes new code when files change. Does not
    start or close the pool."""

    def __init__(
        self, config: Mapping[str, CustomVerifierConfig], pool: VerifierPool, packages: Sequence[str] = ()
    ) -> None:
        """Only `packages` may define functions (if empty, any package). Other packages may only register functions."""
        self._pool = pool
        self._packages = tuple(packages)
        self._config = dict(sorted(config.items()))  # A Struct has no order, but messages should be stable.
        self._verifiers: dict[str, CustomVerifier] = {}
        self._notices: dict[str, str] = {}
        self._watching: list[asyncio.Task[None]] = []

    @property
    def names(self) -> Collection[str]:
        return self._verifiers.keys()

    @property
    def notice(self) -> str:
        """A message for people: files whose new version is not used. Empty if there are none."""
        return "; ".join(self._notices.values())

    def unavailable(self, name: str) -> str:
        return self._verifiers[name].unavailable

    async def find(self) -> None:
        """Loads each verifier once, in a separate process. Raises `InvalidArgument` with each unusable table and the
        reason. If it raises, no verifier changes."""
        codes, problems = configured_codes(self._config, self._packages)
        installed = installed_codes(self._config)
        found = await asyncio.gather(*(tried(code) for code in (*codes, *installed)))
        results = dict(zip((*codes, *installed), found, strict=True))
        problems += [
            FieldViolation(f"reward.custom.{code.name}.{result.field}", str(result))
            for code, result in results.items()
            if isinstance(result, Unusable) and code.name in self._config
        ]
        if problems:
            message = "; ".join(f"{problem.field}: {problem.description}" for problem in problems)
            raise InvalidArgument(message, violations=problems)
        self._notices.clear()
        for code, result in results.items():
            if isinstance(result, Unusable):
                self._verifiers[code.name] = CustomVerifier(code, unavailable=str(result))
                _log.error("verifier of a package not usable", extra={"verifier": code.name, "error": str(result)})
            else:
                self._use(result)

    async def reload(self) -> None:
        """Finds the verifiers again. New processes then import the functions' modules again."""
        await self.find()
        if self._verifiers:
            self._pool.renew()

    async def start(self) -> None:
        """Begins to take new code, for the tables with `reload`."""
        watched = [name for name, table in self._config.items() if table.reload]
        self._watching = [asyncio.create_task(self._watch(name)) for name in watched]

    async def close(self) -> None:
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)

    async def score(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        return await self._pool.judge_custom(truth.verifier, custom_arguments(truth, prompt, completion))

    async def label_problem(self, truth: GroundTruth) -> str:
        return ""  # Only the verifier's author knows which labels it accepts.

    async def describe(self) -> Sequence[ListedVerifier]:
        return [
            ListedVerifier(
                name,
                reads=" ".join(sorted(custom.parameters)),
                description=custom.description or f"A custom verifier: {custom.code.location}",
                unavailable=custom.unavailable,
                code_digest=custom.digest,
            )
            for name, custom in self._verifiers.items()
        ]

    async def _watch(self, name: str) -> None:
        # The file may have changed since `find` read it, so compare it with its code once.
        async for _ in new_versions(self._config[name].file):
            await self._reload(name)

    async def _reload(self, name: str) -> None:
        """Takes a file's code if it differs from the current one and works."""
        table, current = self._config[name], self._verifiers[name]
        try:
            code = await asyncio.to_thread(read_code, name, table)
            if code.digest != current.digest:
                self._use(await probe(code))
                fields = {"verifier": name, "code": code.digest, "before": current.digest, "file": code.path}
                _log.info("verifier has new code", extra=fields)
        except Unusable as error:
            self._notices[name] = (
                f"reward.custom.{name}.{error.field}: the new code cannot be used, so the code with the digest "
                f"{current.digest[:SHOWN_DIGITS]} stays in use: {error}"
            )
            _log.error("verifier keeps its code", extra={"verifier": name, "error": self._notices[name]})
        else:
            self._notices.pop(name, None)

    def _use(self, verifier: CustomVerifier) -> None:
        self._verifiers[verifier.code.name] = verifier
        self._pool.use(verifier)


def custom_arguments(
    truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion
) -> Callable[[Collection[str]], dict[str, Any]]:
    """Returns a function from names of `loading.NAMES` to their values for one completion, in the form for another
    process. Raises `InvalidArgument` for a malformed completion."""
    ids = int32_from_wire(completion.token_ids, "completion.token_ids")
    finish_reason = finish_reason_from_wire(completion.finish_reason).value
    values: dict[str, Callable[[], Any]] = {
        "completion": lambda: completion.text,
        "label": lambda: truth.label,
        "prompt": lambda: prompt.question,
        "messages": lambda: list(map(for_template, prompt.messages)),
        "token_ids": ids.tolist,
        "finish_reason": lambda: finish_reason,
        "prompt_id": lambda: prompt.prompt_id,
    }
    return lambda names: {name: values[name]() for name in names}
