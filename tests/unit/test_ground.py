"""Files that are written by a tool are current, and those that people start from work."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.coordinator.preflight import preflight
from shoal.config import load_config, parse_config
from shoal.config.load import config_struct

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


@pytest.mark.parametrize("tool", ["lock.py", "configuration_docs.py"])
def test_what_the_tools_write_is_current(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / tool), "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_in_configs_loads_and_survives_the_wire(path: Path) -> None:
    config = load_config(path)
    assert parse_config(config_struct(config)) == config


def test_the_quickstart_has_its_held_out_questions() -> None:
    config = load_config(ROOT / "configs" / "quickstart.toml")
    inputs = preflight(config)
    asked = {prompt.text for prompt in inputs.prompts.prompts}
    assert len(inputs.evaluation_prompts) == config.evaluation.num_prompts == 200
    assert not [prompt.prompt_id for prompt in inputs.evaluation_prompts if prompt.text in asked]
