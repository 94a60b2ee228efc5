"""The repository holds what its authors wrote: no packages, no archives, nothing new at its top level by accident."""

import re
import shutil
import subprocess
from pathlib import PurePosixPath

import pytest

from tests.support.repository import ROOT

ARCHIVES = frozenset({
    ".7z", ".bz2", ".deb", ".egg", ".gz", ".jar", ".lz4", ".rar", ".rpm", ".tar", ".tgz", ".whl", ".xz", ".zip", ".zst",
    ".bin", ".ckpt", ".gguf", ".npz", ".onnx", ".pickle", ".pkl", ".pt", ".pth", ".safetensors", ".sqlite",
})  # fmt: skip
"""Suffixes of packages, archives, and files of models and runs."""
PAGES = frozenset({"CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"})
SETTINGS = frozenset({"Makefile", "buf.yaml", "pyproject.toml"})
"""Files of tools. Those and folders that begin with a dot are named by their tools."""


@pytest.fixture(scope="module")
def tracked() -> list[PurePosixPath]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"git does not list the files: {done.stderr.strip()}")
    return [PurePosixPath(path) for path in done.stdout.split("\0") if path]


def test_the_top_level_is_what_the_architecture_names(tracked: list[PurePosixPath]) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = text.partition("## The folders")[2].split("```")[1]
    folders = set(re.findall(r"^([a-z_]+)/", picture, re.MULTILINE))
    assert {"shoal", "services", "tests"} < folders, f"the picture of docs/architecture.md is not read: {folders}"
    found = {path.parts[0] for path in tracked if not path.parts[0].startswith(".")}
    wanted = folders | PAGES | SETTINGS
    assert found == wanted, f"unknown: {sorted(found - wanted)}; missing: {sorted(wanted - found)}"


def test_no_package_or_archive_is_tracked_outside_the_tests(tracked: list[PurePosixPath]) -> None:
    found = [str(path) for path in tracked if path.parts[0] != "tests" and ARCHIVES.intersection(path.suffixes)]
    assert not found, f"these files do not belong to the source: {found}"
