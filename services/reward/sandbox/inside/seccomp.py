"""System calls that a confined process may not make (seccomp(2), one classic BPF program).

The namespaces keep the process away from files, network and other processes; this filter keeps it from starting
processes, from affecting the processes that examine it, and from parts of the kernel that no exercise needs.
"""

import ctypes
import errno
import functools
import os
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_CLONE_THREAD = 0x10000
_CLONE_NEW = 0x7E020000
"""Flags that ask for namespaces."""
_X32_NUMBERS = 0x40000000

_Instruction = tuple[int, int, int, int]

_ALLOW_REST: _Instruction = (_RETURN, 0, 0, _ALLOW)

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Numbers from the kernel's tables: (x86-64, arm64). -1 means that the call does not exist.
_REFUSED: dict[str, tuple[int, int]] = {
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281),
    "socket": (41, 198), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "setpriority": (141, 140), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "kcmp": (312, 272),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "quotactl": (179, 60), "swapon": (167, 224),
    "reboot": (169, 142), "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "personality": (135, 92), "fanotify_init": (300, 262),
}  # fmt: skip
_STARTS_PROCESSES = frozenset({"fork", "vfork", "execve", "execveat"})
_CLONE, _CLONE3 = (56, 220), (435, 435)
# Calls that are allowed only on the process itself: (call, position of the process id).
_ON_ITSELF = {"kill": (62, 129), "tgkill": (234, 131), "tkill": (200, 130)}
_PRLIMIT = (302, 261)
# Commands that make the kernel send signals to others: F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP.
_FCNTL, _FCNTL_COMMANDS = (72, 25), (8, 10, 15)
_IOCTL, _IOCTL_COMMANDS = (16, 29), (0x8901, 0x8902)


def is_supported() -> bool:
    """Returns whether the numbers of this machine's system calls are known."""
    return platform.machine() in _ARCHITECTURES


def prepare() -> None:
    """Builds the filter once, before the forks, so that not every process must build it."""
    _same_for_all()


def confine(*, may_start_processes: bool = False) -> None:
    """Applies the filter, irrevocably, to this process, its threads, and the processes that it may start.

    With `may_start_processes` it may also send signals to others; then only its process namespace isolates it. Raises
    `OSError` when the kernel refuses the filter.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    program = [*_refusals(True), _ALLOW_REST] if may_start_processes else _program(os.getpid())
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: number of instructions, padding, pointer to them.
    head = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, head, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel refuses the seccomp filter")


def _refusals(may_start_processes: bool) -> list[_Instruction]:
    """Returns the part of the filter that is the same for every process."""
    column = list(_ARCHITECTURES).index(platform.machine())
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, _ARCHITECTURES[platform.machine()]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32_NUMBERS),
        (_RETURN, 0, 0, _KILL_PROCESS),
    ]
    for name, numbers in _REFUSED.items():
        number = numbers[column]
        if number >= 0 and not (may_start_processes and name in _STARTS_PROCESSES):
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    # The C library falls back to clone, whose flags can be checked.
    program += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    # A thread must have the bit for threads; a process must have no bit for namespaces.
    bits, skipped = (_CLONE_NEW, (0, 1)) if may_start_processes else (_CLONE_THREAD, (1, 0))
    program += _when(
        _CLONE[column],
        [
            (_LOAD, 0, 0, _argument(0)),
            (_ANY_BIT, *skipped, bits),
            (_RETURN, 0, 0, _ERRNO | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ],
    )
    return program


@functools.cache
def _same_for_all() -> tuple[_Instruction, ...]:
    """Returns the part of a single process's filter that does not depend on its id."""
    column = list(_ARCHITECTURES).index(platform.machine())
    program = _refusals(False)
    program += _when(_FCNTL[column], _by_argument(1, _FCNTL_COMMANDS, is_allowed=False))
    program += _when(_IOCTL[column], _by_argument(1, _IOCTL_COMMANDS, is_allowed=False))
    return tuple(program)


def _program(own_pid: int) -> list[_Instruction]:
    column = list(_ARCHITECTURES).index(platform.machine())
    program = list(_same_for_all())
    for numbers in _ON_ITSELF.values():
        program += _when(numbers[column], _by_argument(0, (own_pid,), is_allowed=True))
    program += _when(_PRLIMIT[column], _by_argument(0, (0, own_pid), is_allowed=True))
    return [*program, _ALLOW_REST]


def _argument(position: int) -> int:
    """Returns the offset of the lower half of an argument; both architectures are little-endian."""
    return _ARGUMENTS_AT + 8 * position


def _when(number: int, block: list[_Instruction]) -> list[_Instruction]:
    """Returns the instructions for one call; every path through them returns."""
    return [(_EQUAL, 0, len(block), number), *block]


def _by_argument(position: int, values: tuple[int, ...], *, is_allowed: bool) -> list[_Instruction]:
    """Returns the instructions that allow a call only with one of these arguments, or only with any other argument."""
    found = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    refused = _ERRNO | errno.EPERM
    others, these = (refused, _ALLOW) if is_allowed else (_ALLOW, refused)
    return [(_LOAD, 0, 0, _argument(position)), *found, (_RETURN, 0, 0, others), (_RETURN, 0, 0, these)]
