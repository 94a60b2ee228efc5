"""The committed stubs are what the protos give, and the protos keep the house's rules."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

PROTOS = sorted((ROOT / "proto" / "shoal" / "v1").glob("*.proto"))


def test_the_committed_stubs_are_current(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    done = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *outputs, *map(str, PROTOS)],
        env={"PATH": str(Path(sys.executable).parent)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = {path.name: path.read_text() for path in (tmp_path / "shoal" / "v1").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "shoal" / "v1").glob("*_pb2*")}
    assert made.keys() == kept.keys()
    differing = [name for name, text in made.items() if kept[name] != text]
    assert not differing, f"{differing} are not what proto/ gives; run: make proto"


@pytest.mark.parametrize("command", [["lint"], ["format", "--diff", "--exit-code"]])
def test_buf_finds_nothing_to_say(command: list[str]) -> None:
    buf = shutil.which("buf", path=str(Path(sys.executable).parent))
    assert buf is not None, "buf-bin is not installed beside this interpreter"
    done = subprocess.run([buf, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
