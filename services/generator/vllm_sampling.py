"""Requests to vLLM and the answers: sampling parameters, samples, log-probabilities, supports.

Engines with sampling masks return whole supports. Other engines list the highest log-probabilities after top-k, top-p
and min-p. An excluded token has the log-probability -infinity.

Letters: T tokens of a completion, L listed values of all T tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.arrays import Float32Array, Int32Array
from shoal.config.run import RunConfig
from shoal.config.tables.sampling import MAX_TOP_K
from shoal.error_reasons import ErrorReason
from shoal.errors import Internal
from shoal.rollout import FinishReason, SamplingParams, Support, VersionSpan, WeightVersion
from shoal.token_run import TokenRun, spans_within

if TYPE_CHECKING:
    import vllm
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import WeightVersionSpan
    from vllm.v1.engine.async_llm import AsyncLLM

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def sampling_params(
    sampling: SamplingParams, seed: int, *, report_every: int = 0, masks: bool, vocab_size: int
) -> "vllm.SamplingParams":
    """Returns vLLM's parameters for one completion. Raises `ValueError` for values that vLLM refuses.

    `report_every` is the number of tokens in each output except the first and the last; 0 means a single output.
    `masks` states whether the engine returns sampling masks.
    """
    import vllm
    from vllm.sampling_params import RequestOutputKind

    if masks and sampling.temperature == 0:
        # An engine with masks refuses a temperature of 0, and any request without top_k.
        sampling = replace(sampling, temperature=1.0, top_p=1.0, top_k=1, min_p=0.0)
    lists_support = sampling.return_support and not masks
    return vllm.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_completion_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        # Only the caller's tokens and strings may end a completion. vLLM would add the model's stop tokens.
        ignore_eos=True,
        seed=seed,
        logprobs=min(num_listed(sampling.top_k), vocab_size) if lists_support else 0,
        flat_logprobs=True,
        stop=list(sampling.stop_strings),
        include_stop_str_in_output=True,
        # Decoding costs time, and only stop strings need it.
        detokenize=bool(sampling.stop_strings),
        # A stop string may be, or contain, a special token.
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        # The first token shows that sampling has begun.
        output_kind=RequestOutputKind.DELTA,
        stream_interval=report_every or sampling.max_completion_tokens + 1,
    )


def scoring_params(*, masks: bool) -> "vllm.SamplingParams":
    """Returns vLLM's parameters to score a prompt. vLLM must also sample a token."""
    import vllm
    from vllm.sampling_params import RequestOutputKind

    return vllm.SamplingParams(
        max_tokens=1,
        top_k=1 if masks else 0,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def finish_reason(name: str | None) -> FinishReason:
    """Returns why a completion ended. Raises `Internal` for an unknown reason."""
    finish = _FINISH_REASONS.get(name or "")
    if finish is None:
        message = f"vLLM ended a completion with the unknown finish reason {name!r}; use the vLLM that Shoal requires"
        raise Internal(message, reason=ErrorReason.ENGINE_FAILED)
    return finish


def read_tokens(output: "vllm.RequestOutput", start: int, *, with_support: bool) -> TokenRun:
    """Reads the new tokens of an output; the first `start` tokens came in earlier outputs.

    The weight versions cover the completion from its first token on.
    """
    completion = output.outputs[0]
    found = completion.logprobs
    token_ids = np.array(completion.token_ids, dtype=np.int32)
    # The sampled token comes first at each position.
    logprobs = np.array([found.logprobs[start] for start in found.start_indices], dtype=np.float32)
    support = None
    if with_support and completion.sampling_mask is not None:
        support = masked_support(token_ids, completion.sampling_mask.token_ids)
    elif with_support:
        support, logprobs = listed_support(token_ids, found)
    spans = [
        VersionSpan(WeightVersion.parse(span.version), span.start, span.end)
        for span in completion.weight_versions or ()
    ]
    return TokenRun(token_ids, logprobs, spans_within(spans, start, start + len(token_ids)), support)


def versions_so_far(llm: "AsyncLLM", request_id: str) -> "list[WeightVersionSpan]":
    """Returns the weight versions of an unfinished request. vLLM itself adds the versions only to the last output."""
    processor = llm.output_processor
    (internal_id,) = processor.external_req_ids[request_id]
    return processor.request_states[internal_id]._weight_version_spans() or []


def read_logprobs(output: "vllm.RequestOutput") -> Float32Array:
    """Returns the log-probabilities of a prompt's tokens, [P - 1]; the first token has none."""
    found = output.prompt_logprobs
    starts = found.start_indices[1:]
    return np.array([found.logprobs[start] for start in starts], dtype=np.float32)


def num_listed(top_k: int) -> int:
    """Returns the number of log-probabilities to request at each token.

    vLLM keeps all tokens whose logit equals the k-th largest logit, and in bfloat16 many logits are equal.
    """
    return 2 * top_k


def fits_masks(config: RunConfig) -> bool:
    """Returns whether an engine with sampling masks can serve a run. Such an engine refuses requests without top_k.

    A greedy request has top_k 1. Answers to held-out questions may be drawn from the whole vocabulary, or from a part
    so large that the masks would fill the memory, although no service reads these masks.
    """
    evaluation = config.evaluation
    return config.sampling.is_restricted and (
        not evaluation.sources or evaluation.temperature == 0 or 0 < evaluation.top_k <= MAX_TOP_K
    )


def keep_finite_logprobs() -> None:
    """Makes vLLM drop log-probabilities of -infinity at each token, not only at the end of a completion.

    A listed value takes about 90 bytes in vLLM's output. Otherwise a completion of 8000 tokens at a top_k of 1024 would
    take 2 GB of the generator's memory. With stop strings vLLM would also decode each listed token.
    """
    from vllm.v1.engine.logprobs import LogprobsProcessor

    plain = LogprobsProcessor._update_sample_logprobs
    if plain.__module__ == __name__:
        return

    def update(processor: Any, listed: Any) -> None:
        plain(processor, finite_part(listed, processor.num_logprobs + 1))

    LogprobsProcessor._update_sample_logprobs = update


def finite_part(listed: Any, max_columns: int) -> Any:
    """Returns the log-probabilities of some tokens without the columns after the last finite column.

    `listed` is vLLM's `LogprobsLists`. A request gets as many columns as the largest request of its batch.
    """
    finite = np.flatnonzero(np.isfinite(listed.logprobs).any(axis=0))
    # The first column is the sampled token. It stays even if its value is NaN.
    columns = slice(0, min(max_columns, int(finite.max(initial=0)) + 1))
    return listed._replace(logprob_token_ids=listed.logprob_token_ids[:, columns], logprobs=listed.logprobs[:, columns])


def masked_support(token_ids_T: Int32Array, masks: Sequence[Sequence[int]]) -> Support:
    """Reads vLLM's sampling masks, the ids that were kept for each token. Raises `Internal` if a mask is missing."""
    if len(masks) != len(token_ids_T):
        raise Internal(
            f"vLLM returned {len(masks)} sampling masks for {len(token_ids_T)} tokens", reason=ErrorReason.ENGINE_FAILED
        )
    counts = np.array([len(mask) for mask in masks], dtype=np.int64)
    ids = np.fromiter(chain.from_iterable(masks), dtype=np.int32, count=int(counts.sum()))
    position = np.repeat(np.arange(len(masks)), counts)
    is_other = ids != token_ids_T[position]
    return _support(token_ids_T, ids[is_other], position[is_other])


def listed_support(token_ids_T: Int32Array, found: "FlatLogprobs") -> tuple[Support, Float32Array]:
    """Reads the listed finite log-probabilities. Returns the supports, and the tokens' log-probabilities, [T].

    The log-probabilities are normalized over the listed tokens. If the list has no room for all equal logits, the
    support has only the listed tokens, and the sampled token counts as drawn from these.
    """
    starts_T = np.array(found.start_indices)
    ids_L, values_L = np.array(found.token_ids, dtype=np.int32), np.array(found.logprobs)
    position_L = np.repeat(np.arange(len(starts_T)), np.diff(np.append(starts_T, len(ids_L))))
    # The sampled token comes first at each position, and again in its rank.
    is_other_L = np.isfinite(values_L) & (ids_L != token_ids_T[position_L])
    ids, position, values = ids_L[is_other_L], position_L[is_other_L], values_L[is_other_L]
    mass_T = np.exp(values_L[starts_T]) + np.bincount(position, np.exp(values), minlength=len(starts_T))
    logprobs_T = (values_L[starts_T] - np.log(mass_T)).astype(np.float32)
    return _support(token_ids_T, ids, position), logprobs_T


def _support(token_ids_T: Int32Array, others: Int32Array, position: npt.NDArray[np.int64]) -> Support:
    """Puts each token before the other tokens of its support; `position` is the token's index for each of `others`."""
    num_others_T = np.bincount(position, minlength=len(token_ids_T))
    starts_T = np.cumsum(num_others_T) - num_others_T
    return Support(np.insert(others, starts_T, token_ids_T), (num_others_T + 1).astype(np.int32))
