"""A program: gives an engine the weights of a model, then lets one layer after another keep its first weights.

Called with a folder of a model and a type; prints what the canary finds for each kind of layer, as JSON.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from services.coordinator.workers.weights.canary import Reading, load_error, reading_of
from services.generator.cpu_check import checked_on_cpu
from services.generator.model_check import checked_model
from services.generator.plugin import ENGINE_MARK
from services.generator.vllm_sampling import read_logprobs, scoring_params
from services.generator.vllm_start import _engine_arguments, import_vllm
from shoal.rollout import WeightVersion
from shoal.v1 import weights_pb2
from shoal.wire import float32_to_wire, int32_to_wire
from tests.support.configs import run_config
from tests.support.real_generator import CANARY
from tests.support.tiny_experts import published

KINDS_AT = (0, -1)
"""Of the layers of one kind, the first and the last."""


class Engine:
    """vLLM's engine in this process, as a generator would start it."""

    def __init__(self, folder: Path, dtype: str) -> None:
        os.environ |= {"TORCH_COMPILE_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", ENGINE_MARK: os.devnull}
        import_vllm()
        from vllm.v1.engine.llm_engine import LLMEngine

        config = run_config(
            str(folder),
            data={"sources": [{"path": "unused.jsonl"}], "max_prompt_tokens": 64},
            sampling={"max_completion_tokens": 64},
            generator={"dtype": dtype, "max_num_seqs": 2},
        )
        model = checked_on_cpu(checked_model(config), trust_remote_code=False)
        self._llm = LLMEngine.from_engine_args(
            _engine_arguments(config, model, {}, on_cpu=True), enable_multiprocessing=False
        )
        worker = self._llm.engine_core.engine_core.model_executor.driver_worker
        self._transfer = worker.weight_transfer_engine
        self.model = self._transfer.model
        self._num_scores = 0

    def load(self, tensors: dict[str, Any]) -> None:
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self._llm.vllm_config):
            self._transfer.start_weight_update()
            self.model.load_weights((name, tensor.clone()) for name, tensor in tensors.items())
            self._transfer.finish_weight_update()

    def score(self) -> Any:
        self._num_scores += 1
        prompt = {"prompt_token_ids": CANARY.tolist()}
        self._llm.add_request(str(self._num_scores), prompt, scoring_params(masks=False))
        while True:
            if outputs := self._llm.step():
                return read_logprobs(outputs[0])


class FirstWeights:
    """The layers of an engine before its first load: parameters, and what else a layer keeps."""

    def __init__(self, model: Any) -> None:
        self._layers = {
            name: (dict(vars(layer)), {key: value.detach().clone() for key, value in own(layer).items()})
            for name, layer in model.named_modules()
            if own(layer)
        }

    def kinds(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self._layers:
            found.setdefault(re.sub(r"\.\d+\.", ".N.", name), []).append(name)
        return {kind: [names[index] for index in dict.fromkeys(KINDS_AT)] for kind, names in found.items()}

    @contextmanager
    def kept(self, name: str, layer: Any) -> Iterator[None]:
        """Makes a layer compute with its first weights."""
        fields, parameters = self._layers[name]
        loaded, now = dict(vars(layer)), {key: value.detach().clone() for key, value in own(layer).items()}
        for key, value in fields.items():
            if not key.startswith("_"):
                setattr(layer, key, value)
        for key, value in parameters.items():
            own(layer)[key].data.copy_(value)
        try:
            yield
        finally:
            for key, value in now.items():
                own(layer)[key].data.copy_(value)
            for key, value in loaded.items():
                if not key.startswith("_"):
                    setattr(layer, key, value)


def own(layer: Any) -> dict[str, Any]:
    return dict(layer.named_parameters(recurse=False))


def reading(learner: Any, engine: Any, dtype: str) -> Reading:
    sent, received = (
        weights_pb2.Canary(token_ids=int32_to_wire(CANARY), logprobs=float32_to_wire(values), dtype=dtype)
        for values in (learner, engine)
    )
    return reading_of(WeightVersion(0, 0), sent, received)


def learner_logprobs(model: Any, dtype: str) -> Any:
    import torch

    from tests.support.real_generator import logprobs_of

    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        return logprobs_of(model, CANARY)


def main(folder: str, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    learner = learner_logprobs(model, dtype)
    engine = Engine(Path(folder), dtype)
    first, at_start = FirstWeights(engine.model), engine.score()
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in published(model).items()}
    engine.load(tensors)
    layers = dict(engine.model.named_modules())

    def found(logprobs: Any) -> dict[str, Any]:
        one = reading(learner, logprobs, dtype)
        return {
            "gap": one.gap,
            "peak": one.peak,
            "limit": one.tolerance,
            "caught": load_error(one, None, None) is not None,
        }

    results = {"at start": found(at_start), "loaded": found(engine.score())}
    for kind, names in first.kinds().items():
        for name in names:
            with first.kept(name, layers[name]):
                results[name] = found(engine.score()) | {"kind": kind}
    results["loaded again"] = found(engine.score())
    assert np.isfinite(results["loaded"]["gap"]), results["loaded"]
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
