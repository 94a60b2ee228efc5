"""A completion that vLLM delivers in two parts, its first token and the rest, is the one that it delivers whole.

With vLLM's own processor of outputs, and no engine.
"""

from typing import Any

import numpy as np
import pytest

from services.generator.vllm_sampling import extend, read_sample, sampling_params
from shoal.rollout import SamplingParams

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


def outputs(*, in_parts: bool, is_late: bool) -> list[Any]:
    """What a caller gets of a request; one that `is_late` reads when all tokens are there."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

    params = sampling_params(RESTRICTED, 1, masks=False, vocab_size=1000)
    if not in_parts:
        params.output_kind, params.stream_interval = RequestOutputKind.FINAL_ONLY, None
    request = EngineCoreRequest("r", [1, 2], None, params, None, 0.0, None, None, None, external_req_id="r")
    queue = RequestOutputCollector(params.output_kind, "r")
    processor = OutputProcessor(None, log_stats=False)
    processor.add_request(request, None, queue=queue)
    read = []
    for index, token in enumerate(TOKENS):
        is_last = index == len(TOKENS) - 1
        finish = FinishReason.LENGTH if is_last else None
        output = EngineCoreOutput("r", [token], new_logprobs=listed(token, 1 + index % 6), finish_reason=finish)
        processor.process_outputs([output], weight_version="0.3" if index < 2 else "0.4")
        if (is_last or not is_late) and (found := queue.get_nowait()) is not None:
            read.append(found)
    return read


@pytest.mark.parametrize("is_late", [False, True])
def test_the_first_token_and_the_rest_make_the_completion_that_vllm_delivers_whole(is_late: bool) -> None:
    (whole,) = outputs(in_parts=False, is_late=False)
    first, *rest = outputs(in_parts=True, is_late=is_late)
    assert len(rest) == (0 if is_late else 1), "the first token, and the rest at the end"
    assert is_late or list(first.outputs[0].token_ids) == TOKENS[:1]
    for part in rest:
        extend(first, part)
    expected, found = read_sample(whole, with_support=True), read_sample(first, with_support=True)
    assert found.token_ids.tolist() == expected.token_ids.tolist() == TOKENS
    assert found.logprobs.tolist() == expected.logprobs.tolist()
    assert (found.finish_reason, found.version_spans) == (expected.finish_reason, expected.version_spans)
    assert [str(span.version) for span in found.version_spans] == ["0.3", "0.4"]
    assert found.support is not None and expected.support is not None
    assert found.support.token_ids.tolist() == expected.support.token_ids.tolist()
    assert found.support.counts.tolist() == expected.support.counts.tolist()
