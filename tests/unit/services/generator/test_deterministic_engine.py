"""The engine of a deterministic run: it samples on beyond stop strings, and cuts completions there afterwards."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.generator.deterministic_engine import DeterministicEngine
from services.generator.engine import Sample
from services.generator.vllm_engine import VllmEngine
from shoal.rollout import FinishReason, SamplingParams, VersionSpan, WeightVersion
from shoal.token_run import TokenRun
from tests.support.packages import stand_in

VERSION = WeightVersion(0, 1)
TEXT = "so <end> and on"


class Reader:
    """The text of a completion whose tokens are characters, where vLLM's reader would be."""

    def __init__(self, request: Any) -> None:
        self._stop = request.sampling_params.stop
        self._text = "".join(map(chr, request.prompt_token_ids))
        self._start = len(self._text)

    @classmethod
    def from_new_request(cls, tokenizer: Any, request: Any) -> "Reader":
        return cls(request)

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        self._text += "".join(map(chr, new_token_ids))
        return next((stop for stop in self._stop if stop in self._text[self._start :]), None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SamplingParams]:
    """Lets the engine sample TEXT to its end; returns what it is asked for."""
    asked: list[SamplingParams] = []

    async def sample(
        self: Any,
        prompt: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        on_tokens: Callable[..., None],
        every: int,
    ) -> Sample:
        asked.append(sampling)
        token_ids = np.array([ord(letter) for letter in TEXT], np.int32)
        logprobs = -np.arange(len(TEXT), dtype=np.float32)
        return Sample(TokenRun(token_ids, logprobs, (VersionSpan(VERSION, 0, len(TEXT)),)), FinishReason.LENGTH)

    monkeypatch.setattr(VllmEngine, "sample", sample)
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"SamplingParams": SimpleNamespace},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(DELTA="delta")},
        "vllm.v1.engine.detokenizer": {"IncrementalDetokenizer": Reader},
    }
    stand_in(monkeypatch, modules)
    return asked


async def sampled(*stop_strings: str, has_tokenizer: bool = True) -> Sample:
    engine = DeterministicEngine.__new__(DeterministicEngine)
    settings = {"skip_tokenizer_init": not has_tokenizer, "return_sampling_mask": False, "get_vocab_size": lambda: 260}
    llm: Any = SimpleNamespace(model_config=SimpleNamespace(**settings), get_tokenizer=lambda: None)
    engine._llm = llm
    # The prompt has the string as well.
    prompt = [ord(letter) for letter in "<end>"]
    sampling = SamplingParams(1.0, len(TEXT), (), stop_strings=stop_strings)
    return await engine.sample(prompt, sampling, 0, lambda run: None)


async def test_a_completion_is_sampled_to_its_end_and_cut_at_the_token_that_completes_a_stop_string(
    asked: list[SamplingParams],
) -> None:
    found = await sampled("never", "<end>")
    end = TEXT.index("<end>") + len("<end>")
    assert asked[0].stop_strings == (), "the engine would look for them beside its steps"
    assert (found.tokens.num_tokens, found.finish_reason) == (end, FinishReason.STOP)
    assert found.tokens.logprobs.tolist() == [-float(index) for index in range(end)]
    assert found.tokens.version_spans == (VersionSpan(VERSION, 0, end),)


async def test_a_completion_without_a_stop_string_stays_as_it_is(asked: list[SamplingParams]) -> None:
    found = await sampled("never")
    assert (found.tokens.num_tokens, found.finish_reason) == (len(TEXT), FinishReason.LENGTH)


async def test_strings_reach_an_engine_without_a_tokenizer_which_refuses_them(asked: list[SamplingParams]) -> None:
    await sampled("<end>", has_tokenizer=False)
    assert asked[0].stop_strings == ("<end>",)
