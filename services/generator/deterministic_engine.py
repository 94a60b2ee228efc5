"""The engine of a deterministic run, whose completions end only inside the engine."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from services.generator.engine import Sample
from services.generator.vllm_engine import VllmEngine
from services.generator.vllm_sampling import sampling_params
from shoal.arrays import Int32Array
from shoal.rollout import FinishReason, SamplingParams
from shoal.token_run import TokenRun

if TYPE_CHECKING:
    import vllm


class DeterministicEngine(VllmEngine):
    """A `VllmEngine` that samples past stop strings, and cuts completions at the stop string after they have ended.

    vLLM looks for stop strings outside its engine, which continues to sample meanwhile. So the number of surplus tokens
    depends on the clock. These tokens change the last bits of the other completions in the batch.
    """

    async def sample(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int,
        on_tokens: Callable[[TokenRun], None],
        report_every: int = 0,
    ) -> Sample:
        if not sampling.stop_strings or not self._has_tokenizer:  # Without a tokenizer `super` refuses the strings.
            return await super().sample(prompt_token_ids, sampling, seed, on_tokens, report_every)
        params = sampling_params(sampling, seed, masks=self._returns_masks, vocab_size=self.vocab_size)
        without = replace(sampling, stop_strings=())
        whole = await super().sample(prompt_token_ids, without, seed, on_tokens, report_every)
        # Use a thread: for tokens that are not text, the time grows with the square of their number.
        end = await asyncio.to_thread(
            num_tokens_to_stop_string, whole.tokens.token_ids, prompt_token_ids, params, self._llm.get_tokenizer()
        )
        return whole if end is None else Sample(whole.tokens.part(0, end), FinishReason.STOP)


def num_tokens_to_stop_string(
    token_ids_T: Int32Array, prompt_token_ids: Sequence[int], params: "vllm.SamplingParams", tokenizer: Any
) -> int | None:
    """Returns the number of tokens up to the token that completes a stop string of `params`; None if no token does.

    `tokenizer` is vLLM's tokenizer.
    """
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    request: Any = SimpleNamespace(
        request_id="", prompt_token_ids=list(prompt_token_ids), prompt_embeds=None, sampling_params=params
    )
    reader = IncrementalDetokenizer.from_new_request(tokenizer, request)
    for number, token_id in enumerate(token_ids_T.tolist(), start=1):
        if reader.update([token_id], stop_terminated=False) is not None:
            return number
    return None
