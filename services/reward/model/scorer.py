"""The scorer of the label that a reward model scores."""

import time
from collections.abc import Collection, Sequence

from services.reward.common.http_endpoint import EndpointFailed
from services.reward.common.scorer import ListedVerifier, whole_text
from services.reward.common.text import clean
from services.reward.common.verdict import Unscorable
from services.reward.model.endpoint import ModelEndpoint
from services.reward.model.model_process import ModelProcess
from services.reward.model.question import Answer, ModelFailed, question_for, value_of
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.conversation import ChatMessage
from shoal.quantities import counted
from shoal.rollout import GroundTruth, Prompt
from shoal.scores import ScoreOutcome, VerifierScore
from shoal.v1 import rollout_pb2

DESCRIPTION = """The score of a reward model, which reads the conversation and the completion (`reward.model`).

Label: not read, and may be missing. Value: the model's logit, any number; 0 to 1 with `value` sigmoid or softmax."""

_MAX_DETAIL_CHARACTERS = 500
_MAX_LOGITS_SHOWN = 8

MISSING = (
    "reward.model.path: neither path nor base_url is set, and a label needs a reward model; set path to a sequence "
    "classification model, or reward.model.base_url to the address of a server that has such a model"
)
"""The reason why labels that need a reward model cannot be used."""


class ModelScorer:
    """The scorer of the label `reward_model`. Without `reward.model` it is listed, but cannot be used."""

    NAMES = ("reward_model",)

    def __init__(self, config: RewardModelConfig) -> None:
        self._config = config
        self._model: ModelProcess | ModelEndpoint | None = None
        self._label: int | None = None
        """The index of the label that is the reward, once the model answers."""
        self.names: Collection[str] = self.NAMES

    def unavailable(self, name: str) -> str:
        return "" if self._config.is_given else f"the verifier needs a reward model; {MISSING}"

    async def start(self) -> None:
        """Returns when the model answers. Raises the error of the model's `start` if it does not."""
        if self._config.is_given:
            self._model = ModelProcess(self._config) if self._config.path else ModelEndpoint(self._config)
            self._label = await self._model.start()

    async def close(self) -> None:
        if self._model is not None:
            await self._model.close()

    async def score(self, truth: GroundTruth, prompt: Prompt, completion: rollout_pb2.Completion) -> VerifierScore:
        text = whole_text(prompt, completion) if self._config.after_thoughts else completion.text
        return await self.judge(truth.verifier, prompt.messages, prompt.text, text)

    async def judge(
        self, verifier: str, messages: Sequence[ChatMessage], prompt_text: str, completion: str
    ) -> VerifierScore:
        """Scores a completion. Never raises, except when canceled: an error is an outcome."""
        if self._model is None or self._label is None:
            return VerifierScore(verifier, ScoreOutcome.FAILED, detail="the reward service has started no reward model")
        started = time.perf_counter()
        outcome, value = ScoreOutcome.FAILED, 0.0
        try:
            if not messages and not prompt_text:
                raise Unscorable("the prompt has neither messages nor text")
            answer = await self._model.answer(question_for(self._config, messages, prompt_text, completion))
            value = value_of(answer, self._label, self._config.value)
            outcome, detail = ScoreOutcome.SCORED, _detail(answer, self._label)
        except Unscorable as error:
            outcome, detail = ScoreOutcome.UNSCORABLE, str(error)
        except (ModelFailed, EndpointFailed) as error:
            detail = f"the reward model gave no answer: {error}"
        except Exception as error:
            detail = f"the reward model raised {type(error).__name__}: {error}"
        detail = clean(detail)[:_MAX_DETAIL_CHARACTERS]
        return VerifierScore(verifier, outcome, value, detail, time.perf_counter() - started)

    async def label_problem(self, truth: GroundTruth) -> str:
        return ""  # The label is not read.

    async def describe(self) -> Sequence[ListedVerifier]:
        return [ListedVerifier(name, "prompt and text", DESCRIPTION, self.unavailable(name)) for name in self.NAMES]


def _detail(answer: Answer, label: int) -> str:
    logits = [f"{logit:.6g}" for logit in answer.logits]
    shown = " ".join(logits[:_MAX_LOGITS_SHOWN]) + (" ..." if len(logits) > _MAX_LOGITS_SHOWN else "")
    detail = f"logits {shown}; label {label} pays" if len(logits) > 1 else f"logit {shown}"
    return detail if answer.num_tokens is None else f"{detail}; {counted(answer.num_tokens, 'token')}"
