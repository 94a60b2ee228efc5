"""vLLM's modules of models that can read images, without torchvision."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import skip_without

skip_without("vllm")
MODULES = ("qwen3_5", "qwen3_vl", "gemma3_mm", "gemma4_mm", "mistral3")


def run(program: str, folder: Path, *, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{path}:{Path.cwd()}", "SHOAL_ENGINE_ERRORS": str(folder / "errors"), "HOME": "/tmp"}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed")
def test_the_plug_in_lets_vllm_import_models_that_can_read_images(tmp_path: Path) -> None:
    imports = "; ".join(f"import vllm.model_executor.models.{name}" for name in MODULES)
    done = run(
        f"from services.generator.plugin import register; register(); register(); {imports}\n"
        "from torchvision.transforms.v2 import functional\n"
        "functional.resize()",
        tmp_path,
    )
    assert done.stderr.splitlines()[-1].startswith("ImportError: torchvision.transforms.v2"), done.stderr


def test_an_installed_torchvision_is_used(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text("__version__ = 'real'\n")
    done = run(
        "from services.generator.torchvision_stand_in import stand_in_for_torchvision as stand_in; stand_in()\n"
        "import torchvision; print(torchvision.__version__)",
        tmp_path,
        path=str(tmp_path),
    )
    assert done.stdout == "real\n", done.stderr
