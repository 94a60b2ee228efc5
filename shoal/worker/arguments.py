"""Command-line options that all workers share."""

import argparse
import math
import os
from dataclasses import dataclass, fields
from pathlib import Path

from shoal.rpc.auth.options import add_security_options


@dataclass(frozen=True)
class WorkerArguments:
    """The addresses, folders and files of a worker."""

    coordinator: str
    """host:port of the coordinator. The coordinator need not be running yet."""
    listen: str
    """host:port to listen on; port 0 takes a free port."""
    advertise: str | None
    """host or host:port at which the other services reach this service; None determines it automatically."""
    data_dir: Path
    """Folder for the files that the worker writes: `<data_dir>/<run_id>/...`."""
    metrics_port: int | None
    """Port that Prometheus scrapes; 0 takes a free port, None opens no port."""
    log_file: Path | None
    """File for the logs; None is stderr."""
    parent_pid: int | None = None
    """The process whose end ends this process; None if there is no such process."""
    tls_dir: Path | None = None
    """The folder with this process' certificate; None means no TLS."""
    tokens_file: Path | None = None
    """The file of the callers' tokens. With None, TLS certificates identify callers."""
    allow_wildcard_address: bool = False
    """Whether the process may listen on every interface."""


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options. Most options default to an environment variable, so that containers need no command line."""
    group = parser.add_argument_group("worker")
    coordinator = _environment("SHOAL_COORDINATOR")
    group.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        type=host_port,
        default=coordinator,
        required=coordinator is None,
        help="address of the coordinator; it need not be up yet [SHOAL_COORDINATOR]",
    )
    group.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=host_port,
        default=_environment("SHOAL_LISTEN") or "127.0.0.1:0",
        help="address to listen on, which other machines must reach unless all services are on this machine; port 0 "
        "takes a free port (default: %(default)s) [SHOAL_LISTEN]",
    )
    group.add_argument(
        "--advertise",
        metavar="HOST[:PORT]",
        type=host_or_host_port,
        default=_environment("SHOAL_ADVERTISE"),
        help="address at which the other services reach this service (default: the address of --listen, or this "
        "machine's address toward the coordinator if --listen is every interface) [SHOAL_ADVERTISE]",
    )
    group.add_argument(
        "--data-dir",
        metavar="FOLDER",
        type=Path,
        default=_environment("SHOAL_DATA_DIR") or "runs",
        help="folder for what the worker writes (default: %(default)s) [SHOAL_DATA_DIR]",
    )
    group.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=port,
        default=_environment("SHOAL_METRICS_PORT"),
        help="port that Prometheus scrapes; 0 takes a free port (default: none) [SHOAL_METRICS_PORT]",
    )
    group.add_argument(
        "--log-file", metavar="FILE", type=Path, default=None, help="file for the logs (default: stderr)"
    )
    group.add_argument(
        "--die-with-parent",
        dest="parent_pid",
        action="store_const",
        # Read this early, so that the worker later notices if its parent died during the imports.
        const=os.getppid(),
        help="end when the process that started this one ends",
    )
    add_security_options(parser)


def add_grace_option(parser: argparse.ArgumentParser, waits_for: str, *, default_s: float) -> None:
    """Adds `--grace-s`, the longest wait of a worker that was told to end. `waits_for` completes the help text."""
    parser.add_argument(
        "--grace-s",
        type=seconds,
        # The default is text, so that argparse checks the value from the environment.
        default=_environment("SHOAL_GRACE_S") or f"{default_s:g}",
        metavar="SECONDS",
        help=f"longest wait for {waits_for} when this process is told to end (default: %(default)s) [SHOAL_GRACE_S]",
    )


def _environment(name: str) -> str | None:
    """Returns a variable's value; None if it is unset or empty. Compose files and manifests leave variables empty."""
    return os.environ.get(name) or None


def worker_arguments(namespace: argparse.Namespace) -> WorkerArguments:
    """Returns the parsed options."""
    return WorkerArguments(**{field.name: getattr(namespace, field.name) for field in fields(WorkerArguments)})


def host_port(text: str) -> str:
    """Checks "host:port". An IPv6 host needs brackets."""
    host, colon, number = text.rpartition(":")
    if not colon or not host or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port, such as 10.0.0.1:7000 or [::1]:7000")
    port(number)
    return text


def seconds(text: str) -> float:
    """Checks a time: a finite number that is not negative."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more (given: {text})")
    return value


def host_or_host_port(text: str) -> str:
    """Checks "host" or "host:port"."""
    bare = text.rpartition("]")[2] if text.startswith("[") else text
    if not text or text.startswith(":"):
        raise argparse.ArgumentTypeError(f"{text!r} is not host or host:port, such as generator-0 or 10.0.0.1:7000")
    return host_port(text) if ":" in bare else text


def port(text: str) -> int:
    """Checks a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)
