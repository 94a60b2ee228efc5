"""Contract tests of exports with another version of transformers, in a Python of its own.

SHOAL_TEST_PYTHON_TRANSFORMERS4 names a Python that has transformers 4.57 (and peft, for adapters).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from services.learner.storage.export import export_model
from shoal.config.tables.lora import LoraConfig
from shoal.config.tables.model import ModelConfig
from tests.support import load_models
from tests.support.interpreters import interpreter_with
from tests.support.plain_export import Adapted, export_trained, one_rank
from tests.support.published_models import CONFIGS, make_published_model
from tests.support.tiny_model import IM_END

TEXT = f"Hello 12 w\u00f6rld{IM_END}<|vision_start|> <end_of_turn>x"
MESSAGES = [{"role": "user", "content": "2 + 2? \u00e9"}]
MAX_GAP = 1e-5
"""Of logits in float32: the two versions may order sums differently."""
ADAPTED = "llama3-adapted"
FAMILIES = [*CONFIGS, ADAPTED]


@pytest.fixture(scope="module")
def other_python() -> str:
    """The Python with another version; our own is asked the same, but not alone: unit tests do."""
    return interpreter_with("transformers4")


@pytest.fixture(scope="module")
def requests(other_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Exports a model of each family, and computes logits with the trained one that is in memory."""
    made = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        source = make_published_model(folder / "source", family.removesuffix("-adapted"))
        lm = _export_adapted(source, folder) if family == ADAPTED else _export(source, folder)
        tokens = torch.arange(100) * 7 % lm.config.vocab_size
        with torch.no_grad():
            logits = lm(tokens[None]).logits[0]
        made[family] = {
            "folder": str(folder / "model"), "base": str(source), "token_ids": tokens.tolist(), "text": TEXT,
            "messages": MESSAGES, "logits": logits,
        }  # fmt: skip
    return made


def _export(source: Path, folder: Path) -> Any:
    return export_trained(source, folder / "model", moved_by=0.05)


def _export_adapted(source: Path, folder: Path) -> Any:
    lora = LoraConfig(rank=4)
    engine: Any = Adapted(source, lora)
    model = ModelConfig(path=str(source))
    export_model(engine, engine.lm, model, folder / "model", one_rank(), dtype="float32", lora=lora)
    engine.lm.set_attn_implementation("eager")
    return engine.lm.eval()


@pytest.fixture(scope="module", params=["transformers4", "our own"])
def answers(request: pytest.FixtureRequest, other_python: str, requests: dict[str, Any]) -> dict[str, Any]:
    python = sys.executable if request.param == "our own" else other_python
    plain = {
        name: {key: value for key, value in values.items() if key != "logits"} for name, values in requests.items()
    }
    done = subprocess.run(
        [python, load_models.__file__], input=json.dumps(plain), capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_computes_what_the_trained_model_does(
    answers: dict[str, Any], requests: dict[str, Any], family: str
) -> None:
    answer = answers[family]
    assert "error" not in answer, answer["error"]
    assert answer["missing"] == []
    gap = float((torch.tensor(answer["logits"]) - requests[family]["logits"]).abs().max())
    assert gap < MAX_GAP, f"logits differ by {gap:.2e}"
    if "adapter_logits" in answer:
        gap = float((torch.tensor(answer["adapter_logits"]) - requests[family]["logits"]).abs().max())
        assert gap < MAX_GAP, f"logits of the base model with the adapter differ by {gap:.2e}"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokenizer_of_an_export_gives_the_ids_of_the_run(
    answers: dict[str, Any], requests: dict[str, Any], family: str
) -> None:
    from transformers import AutoTokenizer

    answer, own = answers[family], AutoTokenizer.from_pretrained(requests[family]["base"])
    assert answer["text_ids"] == own(TEXT)["input_ids"]
    assert answer["chat_ids"] == own.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert own.eos_token_id in answer["end_ids"], answer["end_ids"]
