"""The arguments that vLLM's engine gets on a GPU, held to the fields that the installed vLLM declares."""

import ast
import os
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from services.generator.cpu_check import checked_on_cpu
from services.generator.model_check import CheckedModel
from services.generator.vllm_start import (
    _check_sockets_fit,
    _engine_arguments,
    _not_started,
    _settle_kernels,
    prepare_environment,
)
from shoal.config import parse_config
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, Internal, InvalidArgument, ResourceExhausted, Unavailable
from shoal.suggest.memory import GIB
from tests.support.configs import run_config
from tests.support.library_source import class_of, fields_of, source_of
from tests.support.packages import stand_in
from tests.support.tiny_model import make_tiny_model

torch = pytest.importorskip("torch")


@pytest.fixture
def arguments_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Returns the function that makes the arguments for settings; vLLM's class is recorded."""
    known = fields_of(class_of(source_of("vllm", "engine/arg_utils.py"), "EngineArgs"))
    known |= fields_of(class_of(source_of("vllm", "engine/arg_utils.py"), "AsyncEngineArgs"))

    def engine_arguments(**values: Any) -> dict[str, Any]:
        assert values.keys() <= known, f"vLLM has no {values.keys() - known}"
        return values

    platform = SimpleNamespace(get_device_total_memory=lambda: 40 * GIB)
    modules = {
        "vllm": {"AsyncEngineArgs": engine_arguments},
        "vllm.config": {"WeightTransferConfig": SimpleNamespace},
        "vllm.platforms": {"current_platform": platform},
    }
    stand_in(monkeypatch, modules)
    folder = make_tiny_model(tmp_path)

    def make(
        *, on_cpu: bool = False, has_state: bool = False, adapter: Any = MappingProxyType({}), **sections: Any
    ) -> dict[str, Any]:
        config = {"model": {"path": str(folder)}, "data": {"sources": [{"task": "arithmetic"}]}, **sections}
        model = CheckedModel(folder, "bfloat16", 2048, has_state)
        return _engine_arguments(parse_config(config), model, adapter, on_cpu=on_cpu)

    return make


def test_an_engine_with_a_gpu_of_its_own_measures_its_cache(arguments_of: Any) -> None:
    arguments = arguments_of(generator={"gpu_memory_utilization": 0.8, "tensor_parallel_size": 2})
    assert arguments["gpu_memory_utilization"] == 0.8 and arguments["tensor_parallel_size"] == 2
    assert arguments["kv_cache_memory_bytes"] is None and not arguments["enable_sleep_mode"]
    assert not {"block_size", "distributed_executor_backend"} & arguments.keys(), "settings for a CPU"


def test_an_engine_that_shares_its_gpu_gets_its_cache_in_bytes_and_may_sleep(arguments_of: Any) -> None:
    arguments = arguments_of(
        launch={"single_gpu": True},
        grpo={"max_staleness": 0},
        generator={"gpu_memory_utilization": 0.5, "sleep_while_training": True, "enforce_eager": True},
    )
    # Half of 40 GiB, less 1.5 GiB for the runtime and some MB for weights and a pass.
    assert 18.4 < arguments["kv_cache_memory_bytes"] / GIB < 18.5, arguments["kv_cache_memory_bytes"]
    assert arguments["enable_sleep_mode"] and arguments["enforce_eager"]


def test_an_engine_on_a_cpu_keeps_no_prefixes_of_a_model_with_states(arguments_of: Any) -> None:
    for has_state in (True, False):
        arguments = arguments_of(on_cpu=True, has_state=has_state)
        assert arguments.get("enable_prefix_caching", True) is not has_state


def test_an_engine_on_a_cpu_gets_no_setting_of_a_gpu(arguments_of: Any) -> None:
    arguments = arguments_of(on_cpu=True, generator={"cpu_kv_cache_gib": 0.5, "gpu_kv_cache_gib": 3})
    assert arguments["kv_cache_memory_bytes"] == GIB / 2
    assert not {"gpu_memory_utilization", "enable_sleep_mode"} & arguments.keys()


def test_an_engine_on_a_cpu_does_not_divide_prompts(arguments_of: Any) -> None:
    assert arguments_of(on_cpu=True)["enable_chunked_prefill"] is False
    assert "enable_chunked_prefill" not in arguments_of()


def test_a_divided_prompt_would_end_an_engine_on_a_cpu() -> None:
    runner = source_of("vllm", "v1/worker/gpu_model_runner.py")
    assert "set_offset" in ast.unparse(runner), "vLLM rewinds no random numbers any more: prompts may be divided"
    with pytest.raises(RuntimeError, match="does not use offset"):
        torch.Generator("cpu").get_offset()


def test_the_engine_runs_code_of_a_model_only_if_it_is_trusted(arguments_of: Any, tmp_path: Path) -> None:
    assert arguments_of()["trust_remote_code"] is False
    trusted = arguments_of(model={"path": str(tmp_path), "trust_remote_code": True})
    assert trusted["trust_remote_code"] is True


GREEDY = {"evaluation": {"sources": [{"task": "arithmetic"}]}}
FULL = {"evaluation": {"sources": [{"task": "arithmetic"}], "temperature": 1.0, "top_p": 0.9}}
TOP_K = {"evaluation": {"sources": [{"task": "arithmetic"}], "temperature": 1.0, "top_k": 50}}


@pytest.mark.parametrize("others", [{}, GREEDY, TOP_K], ids=["no evaluation", "greedy", "top_k"])
def test_an_engine_on_a_gpu_returns_sampling_masks_where_every_request_has_a_top_k(
    arguments_of: Any, others: dict[str, Any]
) -> None:
    arguments = arguments_of(sampling={"top_k": 20, "top_p": 0.9}, **others)
    assert arguments["return_sampling_mask"] is True and "max_logprobs" not in arguments
    # vLLM refuses masks with other log-probabilities, whose mass would not be 1.
    assert arguments["logprobs_mode"] == "processed_logprobs"


@pytest.mark.parametrize(("on_cpu", "others"), [(True, {}), (True, GREEDY), (False, FULL)])
def test_an_engine_without_masks_lists_twice_as_many_log_probabilities_as_top_k(
    arguments_of: Any, on_cpu: bool, others: dict[str, Any]
) -> None:
    arguments = arguments_of(on_cpu=on_cpu, sampling={"top_k": 20, "min_p": 0.1}, **others)
    assert arguments["max_logprobs"] == 40 and "return_sampling_mask" not in arguments


@pytest.mark.parametrize("on_cpu", [True, False])
def test_an_engine_of_a_run_at_full_support_gets_no_setting_of_supports(arguments_of: Any, on_cpu: bool) -> None:
    assert not {"max_logprobs", "return_sampling_mask"} & arguments_of(on_cpu=on_cpu).keys()


def test_adapters_are_switched_on_for_the_adapter_way_alone_and_take_their_memory_from_a_shared_cache(
    arguments_of: Any,
) -> None:
    shared = {"launch": {"single_gpu": True}, "grpo": {"max_staleness": 0}}
    sections = {"learner": {"lora": {"rank": 16}}, **shared}
    merged = arguments_of(**sections, generator={"gpu_memory_utilization": 0.5})
    assert not {name for name in merged if "lora" in name}
    adapter = {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": (16, 2**20)}
    arguments = arguments_of(**sections, generator={"gpu_memory_utilization": 0.5, "lora": "adapter"}, adapter=adapter)
    assert arguments["enable_lora"] and arguments["lora_target_modules"] == ["up_proj"]
    # Two slots of 16 x 2^20 bfloat16 numbers.
    assert merged["kv_cache_memory_bytes"] - arguments["kv_cache_memory_bytes"] == 2 * 2**25


DETERMINISTIC = {
    "run": {"deterministic": True, "num_threads": 3},
    "grpo": {"max_staleness": 0},
    "generator": {"dtype": "float32"},
    "learner": {"compute_dtype": "float32"},
}


def test_the_engine_of_a_deterministic_run_plans_no_step_ahead_and_keeps_the_order_of_requests(
    arguments_of: Any,
) -> None:
    arguments = arguments_of(on_cpu=True, **DETERMINISTIC)
    assert (arguments["async_scheduling"], arguments["scheduling_policy"]) == (False, "fcfs")
    # An executor in another process would take its threads from the cores that vLLM binds it to.
    assert arguments["distributed_executor_backend"].endswith("UniProcExecutor")
    assert not {"async_scheduling", "scheduling_policy"} & arguments_of(on_cpu=True).keys(), "vLLM's own choice"


def test_an_engine_gets_the_threads_of_the_run_and_a_deterministic_run_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("MKL_DYNAMIC", "TRUE")
    _settle_kernels(run_config(), on_cpu=False)
    assert os.environ["OMP_NUM_THREADS"] == "5" and os.environ["MKL_CBWR"] == "AVX2"
    config = run_config(**DETERMINISTIC)
    _settle_kernels(config, on_cpu=True)
    found = [os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_CBWR", "MKL_DYNAMIC")]
    assert found == ["3", "AUTO", "FALSE"], "threads, the mode of MKL, and whether it may take fewer threads"
    with pytest.raises(InvalidArgument, match=r"run\.deterministic: "):
        _settle_kernels(config, on_cpu=False)


@pytest.mark.parametrize(
    ("kind", "values", "refusal"),
    [
        ("gemma4_text", {"head_dim": 32, "global_head_dim": 64}, None),
        (
            "gemma4_text",
            {"head_dim": 32, "global_head_dim": 48},
            r"heads of size 48; vLLM on CPU supports only 32, 64;",
        ),
        ("llama", {"hidden_size": 64, "num_attention_heads": 4}, "heads of size 16;"),
        ("qwen3_moe", {"head_dim": 64}, None),
        ("ernie4_5_moe", {"head_dim": 64}, "kind ernie4_5_moe, which .*: its routers choose experts by a score with a"),
        ("minimax_m2", {"head_dim": 64}, "kind minimax_m2, which .*: its routers"),
        ("olmo_hybrid", {}, "kind olmo_hybrid, which .* kernels of its recurrent layers for GPUs alone"),
        ("kimi_linear", {}, "kind kimi_linear, which .* kernels of its recurrent layers for GPUs alone"),
        (
            "nemotron_h",
            {"layers_block_type": ["mamba", "moe", "attention"]},
            "kind nemotron_h, which .*: its experts have no gate",
        ),
        ("nemotron_h", {"layers_block_type": ["mamba", "mlp", "attention"], "head_dim": 64}, None),
        ("qwen3_5_text", {"head_dim": 64}, r"generator\.dtype: .*float32: .*bfloat16"),
    ],
)
def test_a_model_that_vllm_would_not_compute_right_on_a_cpu_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, values: dict[str, Any], refusal: str | None
) -> None:
    from transformers import AutoConfig

    backend = SimpleNamespace(get_supported_head_sizes=lambda: [32, 64])
    packages = ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends")
    stand_in(monkeypatch, {name: {} for name in packages})
    stand_in(monkeypatch, {"vllm.v1.attention.backends.cpu_attn": {"CPUAttentionBackend": backend}})
    AutoConfig.for_model(kind, **values).save_pretrained(tmp_path)
    model = CheckedModel(tmp_path, "float32", 2048)
    if refusal is None:
        assert checked_on_cpu(model, trust_remote_code=False).has_state == (kind == "nemotron_h")
        return
    with pytest.raises(InvalidArgument, match=refusal) as error:
        checked_on_cpu(model, trust_remote_code=False)
    assert error.value.reason == ErrorReason.ENGINE_REFUSED


def test_sockets_are_in_a_folder_whose_path_is_short_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = f"/{'a' * 69}", f"/{'a' * 70}"
    for folder, expected in ((short, short), (long, "/tmp")):
        monkeypatch.setattr("tempfile.tempdir", folder)
        monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
        prepare_environment()
        assert os.environ["VLLM_RPC_BASE_PATH"] == expected
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", long)
    prepare_environment()
    with pytest.raises(FailedPrecondition, match="VLLM_RPC_BASE_PATH"):
        _check_sockets_fit()


def test_an_engine_without_enough_memory_says_which_fields_to_change() -> None:
    died = RuntimeError("Engine core initialization failed")
    full = _not_started(died, ["OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."])
    assert type(full) is ResourceExhausted and full.reason == ErrorReason.ENGINE_FAILED, full
    assert "generator.gpu_memory_utilization" in full.message and "2.00 GiB" in full.message, full.message
    assert type(_not_started(died, ["KeyError: 'lm_head'"])) is Internal
    assert type(_not_started(died, [])) is Unavailable
