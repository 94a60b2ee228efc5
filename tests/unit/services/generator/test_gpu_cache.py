import json
from pathlib import Path
from typing import Any

import pytest

from services.generator.gpu_cache import kv_cache_bytes
from shoal.config import RunConfig
from shoal.errors import InvalidArgument
from shoal.suggest.memory import GIB
from tests.support.configs import run_config

pytest.importorskip("torch")


def config(folder: Path, *, single_gpu: bool = True, **generator: Any) -> RunConfig:
    return run_config(
        str(folder), generator={"gpu_memory_utilization": 0.25, **generator}, launch={"single_gpu": single_gpu}
    )


def test_vllm_measures_what_is_left_of_a_gpu_that_is_its_own(folder: Path) -> None:
    def never() -> int:
        raise AssertionError("nobody has to know the size of the GPU")

    assert kv_cache_bytes(config(folder, single_gpu=False), "float32", never) is None
    assert kv_cache_bytes(config(folder, single_gpu=False, gpu_kv_cache_gib=2.5), "float32", never) == 2.5 * GIB


def test_the_cache_on_a_shared_gpu_is_what_its_share_leaves_beside_weights_pass_and_runtime(folder: Path) -> None:
    sized = kv_cache_bytes(config(folder), "float32", lambda: 16 * GIB)
    # A quarter of 16 GiB; weights of 0.4 MB and a pass of some MB beside 1.5 GiB for the runtime.
    assert sized is not None and 2.45 < sized / GIB < 2.5, f"{sized / GIB} GiB"
    narrow = kv_cache_bytes(config(folder), "bfloat16", lambda: 16 * GIB)
    assert narrow is not None and sized < narrow, f"{narrow} bytes beside weights of half the size, {sized} beside all"
    assert kv_cache_bytes(config(folder, gpu_kv_cache_gib=1), "float32", lambda: 0) == GIB


def test_a_share_without_room_for_a_cache_is_refused_with_both_cures(folder: Path) -> None:
    with pytest.raises(InvalidArgument) as error:
        kv_cache_bytes(config(folder), "float32", lambda: 4 * GIB)
    assert error.value.message.startswith("generator.gpu_memory_utilization: 0.25 "), error.value.message
    assert "1.0 GiB" in error.value.message and "generator.gpu_kv_cache_gib" in error.value.message


@pytest.mark.parametrize("sizes", [{"n_layer": 2, "n_head": 2, "n_embd": 8}, {"num_experts": 8}])
def test_a_model_of_unknown_sizes_is_refused_with_the_setting_that_replaces_them(
    tmp_path: Path, sizes: dict[str, int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 100, **sizes}))
    with pytest.raises(InvalidArgument, match=r"^set generator\.gpu_kv_cache_gib: ") as error:
        kv_cache_bytes(config(tmp_path), "float32", lambda: 16 * GIB)
    assert str(tmp_path) in error.value.message
    assert kv_cache_bytes(config(tmp_path, gpu_kv_cache_gib=1), "float32", lambda: 0) == GIB
