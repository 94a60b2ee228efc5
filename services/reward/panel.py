"""Everybody who judges, and who of them answers for a verifier's name; the same in the service and without one."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.reward.judge.judge import MISSING as JUDGE_MISSING
from services.reward.judge.judge import Judge, JudgeCounts
from services.reward.judge.labels import JUDGED_LABELS
from services.reward.judge.rubric import DESCRIPTION as RUBRIC_DESCRIPTION
from services.reward.model.scorer import DESCRIPTION as MODEL_DESCRIPTION
from services.reward.model.scorer import MISSING as MODEL_MISSING
from services.reward.model.scorer import RewardModel
from services.reward.own.given import Given
from services.reward.own.own import OwnVerifier, OwnVerifiers
from services.reward.pool import VerifierPool
from services.reward.registry import ALL_VERIFIERS, VERIFIERS
from services.reward.servers import RewardServers, ServedVerifier
from shoal.config.services import RewardConfig
from shoal.rollout import GroundTruth, Prompt, ScoreOutcome, VerifierScore
from shoal.v1 import rollout_pb2
from shoal.verifiers import BUILT_IN_VERIFIERS, JUDGE_VERIFIERS, MODEL_VERIFIERS
from shoal.wire import int32_from_wire

SERVER_PATIENCE_S = 60.0
"""How long other servers are looked for: services start in any order."""
_UNAVAILABLE = "UNAVAILABLE HERE: "


@dataclass(frozen=True)
class Listed:
    """A verifier, for people."""

    name: str
    reads: str
    """What it gets of prompt and completion."""
    description: str
    """What it reads, what it returns, and in which range."""
    unavailable: str = ""
    """Why it cannot work here; empty when it can."""
    code_digest: str = ""
    """SHA-256, in hex, of its code, where that does not come with Shoal."""


class Panel:
    """All that judge by one configuration. Belongs to one event loop."""

    def __init__(self, config: RewardConfig) -> None:
        """Starts nothing: it can describe verifiers, and judge after `start`."""
        self._config = config
        self.pool = VerifierPool(
            num_processes=config.num_processes, timeout_s=config.timeout_s, options=config.verifiers.model_dump()
        )
        self._judge: Judge | None = None
        self._model: RewardModel | None = None
        self._own = OwnVerifiers(config.custom, self.pool.hold)
        self._servers = RewardServers(config.servers)

    @property
    def notice(self) -> str:
        """What people should know of while it works. Empty when all is well."""
        return self._own.notice

    async def find(self, server_patience_s: float = SERVER_PATIENCE_S) -> None:
        """Tries the verifiers that do not come with Shoal, and asks other servers for theirs, so that they can be
        described. Raises a `ShoalError` that names the table that cannot be used."""
        await self._own.start()
        taken = {name: f"reward.custom.{name}" for name in self._own.verifiers}
        await self._servers.start(taken, server_patience_s)

    async def start(self) -> None:
        """Starts what judges, after `find`. Raises a `ShoalError` that says what cannot work."""
        if self._config.judge.base_url:
            self._judge = Judge(self._config.judge)
        await self.pool.start()
        if self._config.model.is_given:
            self._model = RewardModel(self._config.model)
            await self._model.start()
        self._own.watch()

    async def close(self) -> None:
        """Ends everything that was started."""
        await self._own.close()
        await self._servers.close()
        await self.pool.close()
        if self._judge is not None:
            await self._judge.close()
        if self._model is not None:
            await self._model.close()

    def why_not(self, verifier: str) -> str:
        """Why nobody here judges under that name; empty when somebody does."""
        if verifier in JUDGE_VERIFIERS:
            return "" if self._config.judge.base_url else f"the verifier {verifier!r} needs a judge; {JUDGE_MISSING}"
        if verifier in MODEL_VERIFIERS:
            return "" if self._config.model.is_given else f"the verifier {verifier!r} needs a model; {MODEL_MISSING}"
        if verifier in VERIFIERS:
            return ""
        if verifier in ALL_VERIFIERS:
            return f"the verifier {verifier!r} is not installed here: {_missing_package(verifier)}"
        if (own := self._own.verifiers.get(verifier)) is not None:
            return f"the verifier {verifier!r} cannot be used: {own.unavailable}" if own.unavailable else ""
        if verifier in self._servers.verifiers:
            return ""
        by_models = sorted(JUDGE_VERIFIERS | MODEL_VERIFIERS)
        known = [*VERIFIERS, *by_models, *self._own.verifiers, *self._servers.verifiers]
        return f"no verifier is called {verifier!r}; known: {', '.join(known)}"

    async def verify(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        """One verifier's score: that of the pool, or of the judge, the reward model or another server, which are waited
        for here."""
        if truth.verifier in JUDGE_VERIFIERS:
            if self._judge is None:
                return VerifierScore(truth.verifier, ScoreOutcome.FAILED, detail="there is no judge")
            return await self._judge.judge(truth.verifier, prompt.question, completion.text, truth.label)
        if truth.verifier in MODEL_VERIFIERS:
            if self._model is None:
                return VerifierScore(truth.verifier, ScoreOutcome.FAILED, detail="there is no reward model")
            return await self._model.judge(truth.verifier, prompt.messages, prompt.text, completion.text)
        if (served := self._servers.verifiers.get(truth.verifier)) is not None:
            return await served.server.score(served.name, truth, prompt, completion)
        if truth.verifier in self._own.verifiers:
            given = Given(truth, prompt, completion)
            return await self.pool.judge_by_own(truth.verifier, given.values)
        tokens = () if VERIFIERS[truth.verifier].reads == "text" else token_ids(completion)
        return await self.pool.judge(truth.verifier, completion.text, truth.label, tokens)

    @property
    def judge_counts(self) -> JudgeCounts | None:
        """What the judge was asked and what that cost; None where there is no judge."""
        return None if self._judge is None else self._judge.counts

    async def label_problem(self, truth: GroundTruth) -> str:
        """Why nothing can be judged by that label; empty when something can.

        Verifiers read their label before they look at the completion, so an empty completion tells: it costs nothing,
        and a rule of labels stands in the verifier alone.
        """
        if why := self.why_not(truth.verifier):
            return why
        if (served := self._servers.verifiers.get(truth.verifier)) is not None:
            return await served.server.label_problem(served.name, truth)
        if truth.verifier not in BUILT_IN_VERIFIERS:
            return ""  # What a label may be is known to its author.
        if truth.verifier in JUDGE_VERIFIERS:
            return "" if self._judge is None else self._judge.label_problem(truth.verifier, truth.label)
        if truth.verifier in MODEL_VERIFIERS:
            return ""
        judged = await self.pool.judge(truth.verifier, "", truth.label)
        return "" if judged.outcome is ScoreOutcome.SCORED else judged.detail

    async def describe(self) -> list[Listed]:
        """Every verifier that can be named."""
        return [
            *await asyncio.gather(*(asyncio.to_thread(_described, name) for name in ALL_VERIFIERS)),
            *(self._described_judge(name) for name in sorted(JUDGE_VERIFIERS)),
            *(self._described_model(name) for name in sorted(MODEL_VERIFIERS)),
            *(_described_own(name, own) for name, own in self._own.verifiers.items()),
            *(_described_served(name, served) for name, served in self._servers.verifiers.items()),
        ]

    def _described_judge(self, name: str) -> Listed:
        text = RUBRIC_DESCRIPTION if name == "rubric" else JUDGED_LABELS[name].description
        return Listed(name, "prompt and text", text, "" if self._config.judge.base_url else JUDGE_MISSING)

    def _described_model(self, name: str) -> Listed:
        return Listed(name, "prompt and text", MODEL_DESCRIPTION, "" if self._config.model.is_given else MODEL_MISSING)


def token_ids(completion: rollout_pb2.Completion) -> Sequence[int]:
    """The completion's tokens."""
    ids: list[int] = int32_from_wire(completion.token_ids, "completion.token_ids").tolist()
    return ids


def _described(name: str) -> Listed:
    verifier = ALL_VERIFIERS[name]
    why = verifier.unavailable() if name in VERIFIERS else _missing_package(name)
    return Listed(name, verifier.reads, verifier.description, why)


def _described_own(name: str, own: OwnVerifier) -> Listed:
    reads = " ".join(sorted(own.wants))
    return Listed(name, reads, own.description or f"A verifier of yours: {own.code.place}", own.unavailable, own.digest)


def _described_served(name: str, served: ServedVerifier) -> Listed:
    why, description = "", served.description
    if description.startswith(_UNAVAILABLE):
        why, _, description = description.removeprefix(_UNAVAILABLE).partition("\n\n")
    return Listed(name, "what its server reads", description, why, served.code_digest)


def _missing_package(name: str) -> str:
    extra = "tasks" if name == "reasoning_gym" else "reward"
    return f"it needs the package {ALL_VERIFIERS[name].module}: pip install 'shoal[{extra}]'"
