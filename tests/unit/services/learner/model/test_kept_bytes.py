"""`shoal config suggest` and the choice of rows count the activations that the fused modules keep."""

import json
from pathlib import Path
from typing import Any

from shoal.suggest.memory import learner_memory
from shoal.suggest.shape import model_shape
from tests.support.configs import run_config
from tests.support.triton_programs import output_of_interpreter


def test_the_estimate_of_a_fused_layer_is_what_it_keeps(tmp_path: Path) -> None:
    found: dict[str, Any] = output_of_interpreter("tests.unit.services.learner.model.kept_bytes")
    learner = {"pack_tokens": 600, "compute_dtype": "bfloat16", "zero_stage": 0}
    config = run_config(
        "m", data={"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 300},
        sampling={"max_completion_tokens": 300}, learner=learner,
    )  # fmt: skip

    def activations(name: str, num_layers: int) -> float:
        (tmp_path / "config.json").write_text(
            json.dumps(found["sizes"] | {"model_type": name, "num_hidden_layers": num_layers})
        )
        return learner_memory(config, model_shape(str(tmp_path))).parts["activations"]

    for name, rows in found["kept"].items():
        expected = (activations(name, 3) - activations(name, 2)) / 600
        for row, kept in rows.items():
            message = f"{name}, {row}: a layer keeps {kept:.0f} bytes a token, expected {expected:.0f}"
            assert 0.95 <= expected / kept <= 1.06, message
