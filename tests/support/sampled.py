"""A prompt and its completions as a run samples them."""

import numpy as np

from shoal.rollout import Completion, FinishReason, Prompt, VersionSpan, WeightVersion

PROMPT = Prompt("sums:3", np.array([1, 2], np.int32), "1 + 1?", ())


def completion(index: int = 0, text: str = "2", *, num_tokens: int = 1) -> Completion:
    tokens = np.arange(5, 5 + num_tokens, dtype=np.int32)
    spans = (VersionSpan(WeightVersion(0, 0), 0, num_tokens),)
    return Completion(index, tokens, -tokens.astype(np.float32), FinishReason.STOP, spans, seed=1, text=text)
