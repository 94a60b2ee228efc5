"""A reward model behind a server with vLLM's route /classify."""

import asyncio
from typing import Any

from services.reward.common.http_endpoint import EndpointFailed, HttpEndpoint
from services.reward.common.verdict import Unscorable
from services.reward.model.question import Answer, ModelFailed, Question
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument, Unavailable
from shoal.models.reward_model import paying_label

_ROUTE = "/classify"
_PROBE: Question = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


class ModelEndpoint:
    """Sends one question per request. Calls run concurrently. Belongs to one event loop."""

    def __init__(self, config: RewardModelConfig) -> None:
        """Raises `InvalidArgument` if the key's environment variable is not set here."""
        self._config = config
        self._http = HttpEndpoint(
            config, _ROUTE, section="reward.model", server="the reward model's server", expected="classification"
        )
        self._slots = asyncio.Semaphore(config.max_concurrent)

    async def start(self) -> int:
        """Sends a first question. Returns the index of the label that is the reward. Raises `InvalidArgument` if the
        server refuses it, or its labels do not fit the settings, and `Unavailable` if it does not answer."""
        try:
            answer = await self.answer(_PROBE)
        except EndpointFailed as error:
            if error.status is None:
                raise Unavailable(f"reward.model.base_url: {error}") from None
            raise InvalidArgument(
                f"reward.model.base_url: {error}; start the server with `vllm serve MODEL --runner pooling`, with a "
                "sequence classification model and a chat template, and give its address without a path"
            ) from None
        except (ModelFailed, Unscorable) as error:
            raise InvalidArgument(f"reward.model.base_url: a short test question gets no score: {error}") from None
        return paying_label(self._config, len(answer.logits))

    async def answer(self, question: Question) -> Answer:
        """Returns the logits. Raises `EndpointFailed` or `ModelFailed`, and `Unscorable` for a question that is too
        long."""
        async with self._slots:
            answer = await self._http.ask(self._body(question), _read)
        self._check_length(answer)
        return answer

    async def close(self) -> None:
        await self._http.close()

    def _body(self, question: Question) -> dict[str, Any]:
        config = self._config
        # Ask for raw logits, so that values are computed in the same way for every server and for a local model.
        body: dict[str, Any] = {"use_activation": False, "add_special_tokens": config.add_special_tokens}
        if config.name:
            body["model"] = config.name
        if config.too_long != "unscorable":
            # -1 stands for the limit of the server's model.
            body["truncate_prompt_tokens"] = config.max_length_tokens or -1
            body["truncation_side"] = "left" if config.too_long == "cut_start" else "right"
        if "messages" in question:
            body["messages"] = question["messages"]
        else:
            body["input"] = question["text"]
        return body

    def _check_length(self, answer: Answer) -> None:
        most = self._config.max_length_tokens
        if most is None or self._config.too_long != "unscorable":
            return
        if answer.num_tokens is None:
            raise ModelFailed(
                "the server reports no number of tokens: unset reward.model.max_length_tokens, which needs this number"
            )
        if answer.num_tokens > most:
            raise Unscorable(
                f"prompt and completion have {answer.num_tokens} tokens, and reward.model.max_length_tokens is {most}"
            )


def _read(reply: Any) -> Answer:
    """Raises LookupError, TypeError or ValueError for anything but a classification."""
    logits = reply["data"][0]["probs"]
    if not isinstance(logits, list) or not logits or not all(map(_is_number, logits)):
        raise ValueError("probs is not a list of numbers")
    usage = reply.get("usage")
    num_tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return Answer(tuple(map(float, logits)), num_tokens if isinstance(num_tokens, int) else None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
