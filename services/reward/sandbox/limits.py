"""What a program, or a command of a shell, may use in its sandbox."""

import math
from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True)
class SandboxLimits:
    """The resources of one run of a program."""

    timeout_s: float = 1.0
    """Wall time for the program's own statements and one test together."""
    memory_mib: int = 512
    """Address space."""
    output_limit_kib: int = 1024
    """Maximum standard output that is read, or twice the expected output if that is more."""
    files_mib: int = 16
    """Size of all files together and of each file. The files are in memory."""
    num_open_files: int = 64
    num_threads: int = 64
    """Number of threads; the address space usually runs out sooner. Processes cannot be started at all."""


@dataclass(frozen=True)
class ShellLimits:
    """The limits of one command. Files are in memory and count separately."""

    timeout_s: float = 20.0
    memory_mib: int = 1024
    """Memory of all its processes together, and address space of each process."""
    disk_mib: int = 128
    """Size of all files in the folder, and again of all files in /tmp."""
    output_limit_kib: int = 16
    num_processes: int = 64


def rlimits(
    *, memory_mib: int, timeout_s: float, files_mib: int, num_open_files: int, num_processes: int
) -> dict[str, int]:
    """Returns the limits of each process by the names of setrlimit(2)."""
    return {
        "AS": memory_mib * _MIB,
        # CPU time of all threads together; the wall clock ends most programs sooner.
        "CPU": math.ceil(timeout_s) + 1,
        "FSIZE": files_mib * _MIB,
        "NOFILE": num_open_files,
        "NPROC": num_processes,
        "CORE": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
    }
