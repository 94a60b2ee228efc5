"""The scorers of one configuration, for the service and for `offline`."""

import asyncio
from collections.abc import Collection, Sequence

from services.reward.common.scorer import ListedVerifier, Scorer
from services.reward.judge.judge import JudgeCounts
from services.reward.judge.scorer import JudgeScorer
from services.reward.model.scorer import ModelScorer
from services.reward.pool.pool import VerifierPool
from services.reward.pool.scorers import CustomScorer, RuleScorer
from services.reward.reward_servers import ServerScorer
from shoal.config.tables.reward import RewardConfig
from shoal.data.conversation import unknown_verifier
from shoal.rollout import GroundTruth, Prompt
from shoal.scores import VerifierScore
from shoal.v1 import rollout_pb2

SERVER_PATIENCE_S = 60.0
"""Longest wait of the router for other servers, since services start in any order."""


class Router:
    """Passes each completion to the scorer of its verifier. Belongs to one event loop."""

    def __init__(
        self, config: RewardConfig, *, packages: Sequence[str] = (), token_servers: Collection[str] = ()
    ) -> None:
        """Starts nothing. Only `packages` may define custom verifiers (if empty, any package). `token_servers` has the
        addresses that get this process's token."""
        self.pool = VerifierPool(
            num_processes=config.num_processes,
            timeout_s=config.timeout_s,
            options=config.verifiers.model_dump(),
            keep_thoughts=config.keep_thoughts,
        )
        self._judge = JudgeScorer(config.judge, config.keep_thoughts)
        self._custom = CustomScorer(config.custom, self.pool, packages)
        self._servers = ServerScorer(config.servers, token_servers)
        self._scorers: tuple[Scorer, ...] = (
            self._judge,
            RuleScorer(self.pool, config.keep_thoughts),
            ModelScorer(config.model),
            self._custom,
            self._servers,
        )

    @property
    def notice(self) -> str:
        """A warning for people about unusable new code and slow verifiers; empty if all is well."""
        return "; ".join(filter(None, (self._custom.notice, self.pool.notice)))

    @property
    def judge_counts(self) -> JudgeCounts | None:
        """The judge's counts and costs; None without a judge."""
        return self._judge.counts

    async def find(self, server_patience_s: float = SERVER_PATIENCE_S) -> None:
        """Finds the verifiers that do not come with Shoal: loads custom verifiers, and lists the verifiers of other
        servers. Raises a `ShoalError` that names the unusable table."""
        await self._custom.find()
        taken = {name: f"reward.custom.{name}" for name in self._custom.names}
        await self._servers.find(taken, server_patience_s)

    async def reload_custom(self) -> None:
        """Reads the code of custom verifiers again. Raises `InvalidArgument` if one cannot be used. All then keep their
        earlier code."""
        await self._custom.reload()

    async def start(self) -> None:
        """Starts all scorers, after `find`. Raises a `ShoalError` that names the unusable part."""
        for scorer in self._scorers:
            await scorer.start()

    async def close(self) -> None:
        for scorer in reversed(self._scorers):
            await scorer.close()

    def why_not(self, verifier: str) -> str:
        """Returns why the verifier of a name cannot be used; empty if it can."""
        scorer = self._scorer(verifier)
        if scorer is None:
            return unknown_verifier(verifier, [name for scorer in self._scorers for name in scorer.names])
        why = scorer.unavailable(verifier)
        return f"the verifier {verifier!r} cannot be used: {why}" if why else ""

    async def verify(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        """Scores a completion by one verifier, for which `why_not` is empty."""
        scorer = self._scorer(truth.verifier)
        assert scorer is not None, truth.verifier
        return await scorer.score(truth, prompt, completion)

    async def label_problem(self, truth: GroundTruth) -> str:
        """Returns why a label is unusable; empty if it is usable."""
        scorer = self._scorer(truth.verifier)
        why = self.why_not(truth.verifier)
        return why if why or scorer is None else await scorer.label_problem(truth)

    async def describe(self) -> list[ListedVerifier]:
        """Describes every verifier that can be named, by name."""
        listed = await asyncio.gather(*(scorer.describe() for scorer in self._scorers))
        return sorted((one for some in listed for one in some), key=lambda one: one.name)

    def _scorer(self, verifier: str) -> Scorer | None:
        return next((scorer for scorer in self._scorers if verifier in scorer.names), None)
