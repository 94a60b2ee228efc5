"""The scorers of one configuration, and which of them a verifier's name belongs to.

The service and `offline` use the same router.
"""

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
"""How long the router waits for other servers to answer: services start in any order."""


class Router:
    """Hands each completion to the scorer of its verifier. Belongs to one event loop."""

    def __init__(
        self, config: RewardConfig, *, packages: Sequence[str] = (), token_servers: Collection[str] = ()
    ) -> None:
        """Starts nothing: the router can describe verifiers, and score after `start`.

        `packages` are those whose functions may be verifiers (without any, all may), `token_servers` the addresses that
        get this process's token.
        """
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
        """A message for people while the router works; empty if all is well."""
        return "; ".join(filter(None, (self._custom.notice, self.pool.notice)))

    @property
    def judge_counts(self) -> JudgeCounts | None:
        """What the judge was asked and what that cost; None without a judge."""
        return self._judge.counts

    async def find(self, server_patience_s: float = SERVER_PATIENCE_S) -> None:
        """Finds the verifiers that do not come with Shoal, so that they can be described: loads custom verifiers, and
        lists those of other servers. Raises a `ShoalError` that names the table that cannot be used."""
        await self._custom.find()
        taken = {name: f"reward.custom.{name}" for name in self._custom.names}
        await self._servers.find(taken, server_patience_s)

    async def reload_custom(self) -> None:
        """Reads the code of custom verifiers again. Raises `InvalidArgument` if one cannot be used; all then keep their
        former code."""
        await self._custom.reload()

    async def start(self) -> None:
        """Starts all scorers, after `find`. Raises a `ShoalError` that names what cannot work."""
        for scorer in self._scorers:
            await scorer.start()

    async def close(self) -> None:
        """Ends everything that was started."""
        for scorer in reversed(self._scorers):
            await scorer.close()

    def why_not(self, verifier: str) -> str:
        """Returns why no verifier of that name can be used; empty if one can."""
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
        """Returns why nothing can be judged by that label; empty if something can."""
        scorer = self._scorer(truth.verifier)
        why = self.why_not(truth.verifier)
        return why if why or scorer is None else await scorer.label_problem(truth)

    async def describe(self) -> list[ListedVerifier]:
        """Describes every verifier that can be named, by name."""
        listed = await asyncio.gather(*(scorer.describe() for scorer in self._scorers))
        return sorted((one for some in listed for one in some), key=lambda one: one.name)

    def _scorer(self, verifier: str) -> Scorer | None:
        return next((scorer for scorer in self._scorers if verifier in scorer.names), None)
