"""Computes small models with and without fused modules in Triton's interpreter, and prints how far they differ."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GlmConfig,
    LlamaConfig,
    Olmo3Config,
    PreTrainedConfig,
    Qwen3Config,
)

from services.learner.model import fused_modules
from services.learner.model.attention import register_attention
from services.learner.model.fused_modules import fuse_modules
from services.learner.model.packing import sequence_row
from services.learner.model.policy import Policy

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "head_dim": 8, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
MODELS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES),
    "olmo3": Olmo3Config(**SIZES, sliding_window=4),
    "gemma3": Gemma3TextConfig(**SIZES, sliding_window=4),
    "gemma4": Gemma4TextConfig(**SIZES, layer_types=["sliding_attention", "full_attention"]),
    "cohere": CohereConfig(**SIZES),
    "glm": GlmConfig(**SIZES),
}
"""Norms before, after and within layers, weights that count from 1, other norms, and rotations that are not by halves
or not of the whole head."""


@contextmanager
def interpreted_liger() -> Iterator[None]:
    """Lets Triton's interpreter run Liger's kernels.

    The interpreter passes numbers as Python's, has no libdevice, and multiplies numbers in bfloat16 as if they were
    integers.
    """
    import triton.language as tl
    from liger_kernel.ops import rms_norm, swiglu
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def as_tensor(argument: Any) -> Any:
        if not isinstance(argument, float):
            return convert(argument)
        return tl.tensor(interpreter.TensorHandle(np.array([argument], np.float32), tl.float32), tl.float32)

    def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*tensors: Any) -> Any:
            results = function(*(x.float() if isinstance(x, Tensor) else x for x in tensors))
            return tuple(result.to(tensors[0].dtype) for result in results)

        return compute

    with (
        mock.patch.object(interpreter, "_implicit_cvt", as_tensor),
        mock.patch.object(fused_modules, "can_run_kernels", lambda device: True),
        mock.patch.object(rms_norm, "rsqrt", lambda x: tl.math.rsqrt(x)),
        mock.patch.object(swiglu, "swiglu_forward", in_float32(swiglu.swiglu_forward)),
        mock.patch.object(swiglu, "swiglu_backward", in_float32(swiglu.swiglu_backward)),
    ):
        yield


def result_of(lm: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Returns the log-probabilities of two sequences, and the gradient of their sum, by parameter."""
    policy = Policy(lm, compute_dtype=dtype, logits_chunk_tokens=1024)
    random = np.random.default_rng(0)
    row = sequence_row([random.integers(3, 64, size, dtype=np.int32) for size in (6, 2)])
    logprobs_C = policy(row, 1.0)[0]
    lm.zero_grad()
    logprobs_C.sum().backward()
    gradient = {name: parameter.grad for name, parameter in lm.named_parameters() if parameter.grad is not None}
    return {"logprobs": logprobs_C.detach(), **gradient}


def main() -> None:
    found: dict[str, dict[str, Any]] = {}
    torch.manual_seed(0)
    for name, config in MODELS.items():
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in plain.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
        plain.set_attn_implementation(register_attention("eager"))
        expected = {dtype: result_of(plain, dtype) for dtype in (torch.float32, torch.bfloat16)}
        fused = copy.deepcopy(plain)
        state = torch.get_rng_state()
        changed = fuse_modules(fused)
        assert torch.equal(state, torch.get_rng_state()), "fuse_modules drew from the process's random numbers"
        with interpreted_liger():
            results = {dtype: result_of(fused, dtype) for dtype in expected}
        exact = expected[torch.float32]
        found[name] = {
            "fused": changed,
            "float32": distance(results[torch.float32], exact),
            "bfloat16": distance(results[torch.bfloat16], exact),
            "plain bfloat16": distance(expected[torch.bfloat16], exact),
        }
    print(json.dumps(found))


def distance(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Returns the distance of the log-probabilities and of the gradient, as a share of the exact ones' norm."""
    assert found.keys() == exact.keys()
    differences = {name: float((found[name] - exact[name]).norm()) for name in exact}
    norms = {name: float(exact[name].norm()) for name in exact}
    names = [name for name in exact if name != "logprobs"]
    total = sum(norms[name] ** 2 for name in names)
    return {
        "logprobs": differences["logprobs"] / norms["logprobs"],
        "gradient": (sum(differences[name] ** 2 for name in names) / total) ** 0.5,
    }


if __name__ == "__main__":
    main()
