"""The fields of sampled tokens in both dialects."""

from typing import Any

import numpy as np

from shoal.v1 import environment_pb2 as pb
from shoal.v1 import rollout_pb2


def finish_reason(answer: pb.PolicyAnswer) -> str:
    return "length" if answer.finish_reason == rollout_pb2.FINISH_REASON_LENGTH else "stop"


def usage(answer: pb.PolicyAnswer) -> dict[str, int]:
    num_sampled = len(answer.token_ids) // 4
    return {
        "prompt_tokens": answer.num_context_tokens,
        "completion_tokens": num_sampled,
        "total_tokens": answer.num_context_tokens + num_sampled,
    }


def token_ids(answer: pb.PolicyAnswer) -> list[int]:
    ids: list[int] = np.frombuffer(answer.token_ids, "<i4").tolist()
    return ids


def token_logprobs(answer: pb.PolicyAnswer) -> dict[str, Any]:
    """Returns the log-probability of each token. Some clients read the token in `token`, others in `token_id`."""
    values = np.frombuffer(answer.logprobs, "<f4").tolist()
    return {
        "content": [
            {"token": f"token_id:{token}", "token_id": token, "bytes": None, "logprob": value, "top_logprobs": []}
            for token, value in zip(token_ids(answer), values, strict=True)
        ]
    }
