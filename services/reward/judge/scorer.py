"""The scorer of the labels that a language model judges."""

from collections.abc import Collection, Sequence

from services.reward.common.scorer import ListedVerifier, whole_text
from services.reward.judge.judge import MISSING, Judge, JudgeCounts
from services.reward.judge.labels import JUDGED_LABELS, RUBRIC_DESCRIPTION
from shoal.config.tables.judge import JudgeConfig
from shoal.rollout import GroundTruth, Prompt
from shoal.scores import ScoreOutcome, VerifierScore
from shoal.v1 import rollout_pb2


class JudgeScorer:
    """The scorer of `rubric` and the labels of `labels.py`. Without `reward.judge` they are listed, but unusable."""

    NAMES = (*JUDGED_LABELS, "rubric")

    def __init__(self, config: JudgeConfig, keep_thoughts: Collection[str] = ()) -> None:
        """`keep_thoughts` is the field of `reward`."""
        self._config = config
        self._keep_thoughts = keep_thoughts
        self._judge: Judge | None = None
        self.names: Collection[str] = self.NAMES

    @property
    def counts(self) -> JudgeCounts | None:
        """The judge's counts and costs; None without a judge."""
        return None if self._judge is None else self._judge.counts

    def unavailable(self, name: str) -> str:
        return "" if self._config.base_url else f"the verifier needs a judge; {MISSING}"

    async def start(self) -> None:
        if self._config.base_url:
            self._judge = Judge(self._config, self._keep_thoughts)

    async def close(self) -> None:
        if self._judge is not None:
            await self._judge.close()

    async def score(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        if self._judge is None:
            return VerifierScore(truth.verifier, ScoreOutcome.FAILED, detail="the reward service has started no judge")
        text = completion.text if truth.verifier in self._keep_thoughts else whole_text(prompt, completion)
        return await self._judge.judge(truth.verifier, prompt.question, text, truth.label)

    async def label_problem(self, truth: GroundTruth) -> str:
        return "" if self._judge is None else self._judge.label_problem(truth.verifier, truth.label)

    async def describe(self) -> Sequence[ListedVerifier]:
        descriptions = {name: label.description for name, label in JUDGED_LABELS.items()}
        descriptions["rubric"] = RUBRIC_DESCRIPTION
        return [
            ListedVerifier(name, "prompt and text", text, self.unavailable(name)) for name, text in descriptions.items()
        ]
