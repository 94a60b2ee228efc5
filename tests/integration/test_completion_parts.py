"""A completion that vLLM delivers in parts is the one that it delivers whole: its processor of outputs, no engine."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.generator.engine import Sample
from services.generator.vllm_engine import VllmEngine
from shoal.errors import Aborted
from shoal.rollout import SamplingParams
from shoal.token_run import TokenRun, joined

pytest.importorskip("vllm")
pytestmark = pytest.mark.integration

TOKENS = [7, 3, 3, 9, 1]
RESTRICTED = SamplingParams(0.7, 8, (), top_k=3, top_p=0.9, return_support=True)


def listed(token: int, rank: int) -> Any:
    """What the engine lists for a token: itself, then the likeliest, itself again among them."""
    from vllm.v1.outputs import LogprobsLists

    others = [20, 21, 22, 23, 24, 25]
    others[rank - 1] = token
    values = np.log(np.array([0.05, 0.3, 0.25, 0.2, 0.1, 0.1, 0.05]))
    values[0] = values[rank]
    return LogprobsLists(np.array([[token, *others]]), values[None], np.array([rank]))


class Llm:
    """An AsyncLLM whose engine process has a script: it samples TOKENS, the first two under version 0.3."""

    errored = False
    output_handler = None

    def __init__(self, *, reads_after: int, drops_after: int = 0) -> None:
        """The caller reads again when `reads_after` more tokens are there. The request is dropped after `drops_after`
        tokens; 0 drops none."""
        from vllm.v1.engine.output_processor import OutputProcessor

        self.output_processor = OutputProcessor(None, log_stats=False)
        self.model_config = SimpleNamespace(
            skip_tokenizer_init=True, return_sampling_mask=False, get_vocab_size=lambda: 1000
        )
        self._reads_after = reads_after
        self._drops_after = drops_after

    async def generate(self, prompt: Any, params: Any, request_id: str, lora_request: Any) -> AsyncIterator[Any]:
        from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
        from vllm.v1.engine.output_processor import RequestOutputCollector

        internal_id = f"{request_id}-internal"
        request = EngineCoreRequest(
            internal_id, [1, 2], None, params, None, 0.0, None, None, None, external_req_id=request_id
        )
        queue = RequestOutputCollector(params.output_kind, internal_id)
        self.output_processor.add_request(request, None, queue=queue)
        for index, token in enumerate(TOKENS):
            finish = FinishReason.LENGTH if index == len(TOKENS) - 1 else None
            output = EngineCoreOutput(
                internal_id, [token], new_logprobs=listed(token, 1 + index % 6), finish_reason=finish
            )
            self.output_processor.process_outputs([output], weight_version="0.3" if index < 2 else "0.4")
            if index + 1 == self._drops_after:
                self.output_processor.abort_requests([request_id], internal=False)
            reads = finish or index + 1 == self._drops_after or not (index + 1) % self._reads_after
            if reads and (found := queue.get_nowait()) is not None:
                yield found
            if index + 1 == self._drops_after:
                return

    def shutdown(self, timeout_s: float) -> None:
        pass


async def sample(llm: Llm, report_every: int) -> tuple[Sample | None, list[TokenRun]]:
    """Samples a completion, and returns it with its parts; without it if it was dropped."""
    started: Any = SimpleNamespace(llm=llm, delete_files=lambda: None)
    engine = VllmEngine(started, max_model_len=8, hostname=None)
    parts: list[TokenRun] = []
    try:
        return await engine.sample([1, 2], RESTRICTED, 1, parts.append, report_every), parts
    except Aborted:
        return None, parts
    finally:
        await engine.close()


def facts(run: TokenRun) -> tuple[Any, ...]:
    assert run.support is not None
    supports = [run.support.token_ids.tolist(), run.support.counts.tolist()]
    return run.token_ids.tolist(), run.logprobs.tolist(), [(str(s.version), s.end) for s in run.version_spans], supports


@pytest.mark.parametrize("reads_after", [1, 2, 5])
@pytest.mark.parametrize("report_every", [0, 1, 2, 3])
async def test_the_parts_of_a_completion_are_the_whole_completion(report_every: int, reads_after: int) -> None:
    whole, none = await sample(Llm(reads_after=len(TOKENS)), report_every=0)
    assert whole is not None and none == []
    assert whole.tokens.token_ids.tolist() == TOKENS
    assert [(str(s.version), s.start, s.end) for s in whole.tokens.version_spans] == [("0.3", 0, 2), ("0.4", 2, 5)]
    found, parts = await sample(Llm(reads_after=reads_after), report_every)
    assert found is not None
    assert facts(found.tokens) == facts(whole.tokens) and found.finish_reason is whole.finish_reason
    if reads_after < len(TOKENS):
        begun = joined(parts)
        assert facts(begun) == facts(whole.tokens.part(0, begun.num_tokens)), "a part before the end differs"
    if reads_after == 1:
        expected = {0: [1], 1: [1] * 4, 2: [1, 2], 3: [1, 3]}[report_every]
        assert [part.num_tokens for part in parts] == expected


@pytest.mark.parametrize("report_every", [2, 100])
async def test_a_request_that_is_dropped_gives_all_its_tokens_back(report_every: int) -> None:
    whole, _ = await sample(Llm(reads_after=len(TOKENS)), report_every=0)
    none, parts = await sample(Llm(reads_after=1, drops_after=4), report_every)
    assert none is None and whole is not None
    assert facts(joined(parts)) == facts(whole.tokens.part(0, 4)), "tokens that were sampled are lost"
