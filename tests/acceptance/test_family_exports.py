"""Exports of every family, in both versions of transformers and in real vLLM: they compute what the learner does.

SHOAL_TEST_PYTHON_TRANSFORMERS4 names a Python that has transformers 4.57.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from services.learner.model.weights import list_weights
from shoal.arrays import Float32Array
from tests.support import load_models
from tests.support.engine_families import NEW_IN_TRANSFORMERS_5, SERVED, dtype_of, is_trained, tolerance_of
from tests.support.interpreters import interpreter_with
from tests.support.older_config import write_older_config
from tests.support.packages import skip_without
from tests.support.plain_export import export_trained
from tests.support.real_generator import CANARY, Generator, configured_client, gap, logprobs_of
from tests.support.tiny_families import FAMILIES, READERS, save_family
from tests.support.tiny_readers import make_tiny_reader

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

EXPORTED = [family for family in [*FAMILIES, *READERS] if is_trained(family)]
MOVED_BY = 0.05
MAX_GAP = 1e-4
"""In nats, in float32."""
ROUNDED = 0.02
"""The same for Apertus in transformers 4, which keeps the weights of its activation in bfloat16."""


def export(family: str, folder: Path, *, dtype: str = "float32") -> Float32Array:
    """Exports a moved model of a family to `folder / "model"`; returns what the learner computes with its weights."""
    if family in READERS:
        make_tiny_reader(folder / "source", family)
    else:
        save_family(family, folder / "source", **SERVED.get(family, {}))
    write_older_config(folder / "source")
    lm = export_trained(folder / "source", folder / "model", moved_by=MOVED_BY, dtype=dtype)
    for weight in list_weights(lm):
        if not weight.is_float32:
            weight.parameter.data = weight.parameter.data.to(getattr(torch, dtype)).float()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        return logprobs_of(lm, CANARY)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Float32Array]]:
    """The folder of each family's export, and what the learner computes."""
    made = {}
    for family in EXPORTED:
        folder = tmp_path_factory.mktemp(family)
        made[family] = folder / "model", export(family, folder)
    return made


@pytest.fixture(scope="module", params=["transformers 4", "transformers 5"])
def answers(request: pytest.FixtureRequest, exported: dict[str, tuple[Path, Float32Array]]) -> dict[str, Any]:
    python = sys.executable if request.param == "transformers 5" else interpreter_with("transformers4")
    asked = {name: {"folder": str(folder), "token_ids": CANARY.tolist()} for name, (folder, _) in exported.items()}
    done = subprocess.run(
        [python, load_models.__file__], input=json.dumps(asked), capture_output=True, text=True, check=False,
        timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answered: dict[str, Any] = json.loads(done.stdout)
    return answered


@pytest.mark.parametrize("family", EXPORTED)
def test_transformers_computes_from_an_export_what_the_learner_does(
    answers: dict[str, Any], exported: dict[str, tuple[Path, Float32Array]], family: str
) -> None:
    answer, (_, expected) = answers[family], exported[family]
    if "unknown" in answer:
        assert family in NEW_IN_TRANSFORMERS_5 and answer["version"].startswith("4."), answer
        return
    assert "error" not in answer, answer["error"]
    assert not [name for name in answer["missing"] if "vision" not in name]
    table = torch.log_softmax(torch.tensor(answer["logits"]), -1)[:-1]
    found = table.gather(1, torch.from_numpy(CANARY[1:, None]).long())[:, 0].numpy()
    rounds = family == "apertus" and answer["version"].startswith("4.")
    assert gap(found, expected) < (ROUNDED if rounds else MAX_GAP), f"{gap(found, expected):.2g} nats"


@pytest.mark.parametrize("family", [*SERVED, *READERS])
async def test_an_engine_computes_from_an_export_what_the_learner_does(family: str, tmp_path: Path) -> None:
    skip_without("vllm")
    expected = export(family, tmp_path, dtype=dtype_of(family))
    process = Generator(tmp_path, tmp_path / "model", spoil_first_weights=False, dtype=dtype_of(family))
    try:
        async with configured_client(process) as client:
            found = await client.score()
    finally:
        process.end()
    print(f"{family}: {gap(found, expected):.1e}")
    assert gap(found, expected) < tolerance_of(family), f"{gap(found, expected):.2g} nats"
