"""Requests to vLLM and its answers: sampling parameters, samples, log-probabilities."""

from typing import TYPE_CHECKING

import numpy as np

from services.generator.engine import Sample
from shoal.error_reasons import ErrorReason
from shoal.errors import Internal
from shoal.rollout import FinishReason, Float32Array, SamplingParams, VersionSpan, WeightVersion

if TYPE_CHECKING:
    import vllm

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def sampling_params(sampling: SamplingParams, seed: int) -> "vllm.SamplingParams":
    """Returns vLLM's parameters for one completion. Raises `ValueError` for values that vLLM refuses."""
    import vllm
    from vllm.sampling_params import RequestOutputKind

    return vllm.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_completion_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        # Only the caller's tokens and strings end a completion: vLLM would add the model's stop tokens.
        ignore_eos=True,
        seed=seed,
        logprobs=0,
        flat_logprobs=True,
        stop=list(sampling.stop_strings),
        include_stop_str_in_output=True,
        # Decoding costs time, and only stop strings need it.
        detokenize=bool(sampling.stop_strings),
        # A stop string may be, or contain, a special token.
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def scoring_params() -> "vllm.SamplingParams":
    """Returns vLLM's parameters to score a prompt. vLLM has to sample one token as well."""
    import vllm
    from vllm.sampling_params import RequestOutputKind

    return vllm.SamplingParams(
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def read_sample(output: "vllm.RequestOutput") -> Sample:
    """Reads the completion of an output. Raises `Internal` for an unknown finish reason."""
    completion = output.outputs[0]
    finish = _FINISH_REASONS.get(completion.finish_reason)
    if finish is None:
        raise Internal(
            f"vLLM ended a completion for the reason {completion.finish_reason!r}", reason=ErrorReason.ENGINE_FAILED
        )
    found = completion.logprobs
    return Sample(
        token_ids=np.array(completion.token_ids, dtype=np.int32),
        # The sampled token comes first at each position.
        logprobs=np.array([found.logprobs[start] for start in found.start_indices], dtype=np.float32),
        finish_reason=finish,
        version_spans=tuple(
            VersionSpan(WeightVersion.parse(span.version), span.start, span.end)
            for span in completion.weight_versions or ()
        ),
    )


def read_logprobs(output: "vllm.RequestOutput") -> Float32Array:
    """Returns the [P - 1] log-probabilities of a prompt's tokens but the first, which has no predecessor."""
    found = output.prompt_logprobs
    starts = found.start_indices[1:]
    return np.array([found.logprobs[start] for start in starts], dtype=np.float32)
