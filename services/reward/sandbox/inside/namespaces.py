"""A process and a folder for each run of the program, so that no run sees traces of an earlier run. Even without files,
the numbers of processes and files, and the times of a folder, would show how many runs there were."""

import ctypes
import os
import platform
import signal

WRITABLE = "/tmp"
_FOLDER = WRITABLE.encode()
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_NEWPID = 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 8, 32, 4096
_MNT_DETACH = 2
_CAPABILITY_VERSION = 0x20080522
# It keeps Python's lock during a call, which a fork needs.
_LIBC = ctypes.PyDLL(None, use_errno=True)


def mount_folder(num_bytes: int) -> None:
    """Mounts an empty file system in memory, in which the program may write. Raises `OSError` if the kernel refuses."""
    options = f"size={num_bytes},mode=0700".encode()
    _checked(_LIBC.mount(b"tmpfs", _FOLDER, b"tmpfs", _MS_NOSUID | _MS_NODEV, options), f"mount {WRITABLE}")


def unmount_folder() -> None:
    """Removes the mount of `mount_folder`, with all files. Raises `OSError` if the kernel refuses."""
    _checked(_LIBC.umount2(_FOLDER, _MNT_DETACH), f"unmount {WRITABLE}")


def make_read_only(device: str) -> None:
    """Protects the mode and the times of a device that programs may read and write.

    Devices belong to the machine: a program could leave a mark in them, or lock them if the service runs as root.
    Raises `OSError` if the kernel refuses.
    """
    kept = os.statvfs(device).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept
    _checked(_LIBC.mount(None, device.encode(), None, flags, None), f"make {device} read-only")


def fork_apart() -> int:
    """Forks a process that is number 1 of its own namespace. Returns 0 in the new process, and its pid in this process.
    Raises `OSError` if the kernel refuses."""
    ctypes.pythonapi.PyOS_BeforeFork()
    numbers = (_CLONE[platform.machine()], _CLONE_NEWPID | signal.SIGCHLD, 0, 0, 0, 0)
    pid: int = _LIBC.syscall(*map(ctypes.c_long, numbers))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return _checked(pid, "start a process in its own namespace")


def drop_capabilities() -> None:
    """Gives up the capability to mount. Raises `OSError`."""
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _checked(_LIBC.capset(head, (ctypes.c_uint32 * 6)()), "drop the capabilities")


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
