"""The scorer of the label that a reward model scores."""

from collections.abc import Collection, Sequence

from services.reward.common.scorer import ListedVerifier, whole_text
from services.reward.model.reward_model import MISSING, RewardModel
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.rollout import GroundTruth, Prompt
from shoal.scores import ScoreOutcome, VerifierScore
from shoal.v1 import rollout_pb2

DESCRIPTION = """The score of a reward model, which reads the conversation and the completion (`reward.model`).

Label: not read, and may be missing. Value: the model's logit, any number; 0 to 1 with `value` sigmoid or softmax."""


class ModelScorer:
    """The scorer of the label `reward_model`. Without `reward.model` it is listed, but cannot be used."""

    NAMES = ("reward_model",)

    def __init__(self, config: RewardModelConfig) -> None:
        self._config = config
        self._model: RewardModel | None = None
        self.names: Collection[str] = self.NAMES

    def unavailable(self, name: str) -> str:
        return "" if self._config.is_given else f"it needs a model; {MISSING}"

    async def start(self) -> None:
        if self._config.is_given:
            self._model = RewardModel(self._config)
            await self._model.start()

    async def close(self) -> None:
        if self._model is not None:
            await self._model.close()

    async def score(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        if self._model is None:
            return VerifierScore(truth.verifier, ScoreOutcome.FAILED, detail="there is no reward model")
        text = whole_text(prompt, completion) if self._config.after_thoughts else completion.text
        return await self._model.judge(truth.verifier, prompt.messages, prompt.text, text)

    async def label_problem(self, truth: GroundTruth) -> str:
        return ""  # The label is not read.

    async def describe(self) -> Sequence[ListedVerifier]:
        return [ListedVerifier(name, "prompt and text", DESCRIPTION, self.unavailable(name)) for name in self.NAMES]
