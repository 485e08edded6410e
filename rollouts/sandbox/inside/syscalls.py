"""System calls that a job may use: enough to compute, and to read and write the descriptors that the job received.

This is an allow list, so system calls of future kernels are refused. The list excludes every way to create a process
(`fork`, `execve`), to affect another process (`kill`, `ptrace`, `process_vm_*`), to open a socket, to create or change
a file, and to keep memory beyond the job's end (`shmget`, `memfd_create`).
"""

from __future__ import annotations

import platform
from typing import NamedTuple


class SyscallTable(NamedTuple):
    """System calls of one processor architecture by name and number."""

    audit: int
    """The architecture's id in filters (`AUDIT_ARCH_…`)."""
    plain: dict[str, int]
    """Calls that are allowed with any arguments."""
    paths: dict[str, int]
    """Calls that inspect files by name and change nothing; allowed if the file system is the sandbox's own."""
    checked: dict[str, int]
    """Calls that are allowed with some arguments; see `confine.py`."""


_X86_64 = SyscallTable(
    audit=0xC000003E,
    plain={
        "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11,
        "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "pwrite64": 18,
        "readv": 19, "writev": 20, "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32,
        "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39,
        "exit": 60, "wait4": 61, "uname": 63, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99,
        "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131,
        "setrlimit": 160, "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204, "set_tid_address": 218,
        "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
        "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "dup3": 292, "pipe2": 293, "getcpu": 309,
        "getrandom": 318, "membarrier": 324, "rseq": 334,
    },
    paths={
        "stat": 4, "lstat": 6, "access": 21, "getcwd": 79, "readlink": 89, "getdents64": 217, "readlinkat": 267,
        "faccessat": 269, "statx": 332, "faccessat2": 439,
    },
    checked={
        "open": 2, "ioctl": 16, "clone": 56, "kill": 62, "fcntl": 72, "tgkill": 234, "openat": 257, "newfstatat": 262,
        "prlimit64": 302, "clone3": 435,
    },
)  # fmt: skip

_AARCH64 = SyscallTable(
    audit=0xC00000B7,
    plain={
        "dup": 23, "dup3": 24, "close": 57, "pipe2": 59, "lseek": 62, "read": 63, "write": 64, "readv": 65,
        "writev": 66, "pread64": 67, "pwrite64": 68, "pselect6": 72, "ppoll": 73, "fstat": 80, "exit": 93,
        "exit_group": 94, "set_tid_address": 96, "futex": 98, "set_robust_list": 99, "nanosleep": 101,
        "getitimer": 102, "setitimer": 103, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
        "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134,
        "rt_sigprocmask": 135, "rt_sigreturn": 139, "times": 153, "uname": 160, "getrlimit": 163, "setrlimit": 164,
        "getrusage": 165, "getcpu": 168, "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174,
        "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179, "brk": 214, "munmap": 215,
        "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "wait4": 260, "getrandom": 278, "membarrier": 283,
        "rseq": 293,
    },
    paths={
        "getcwd": 17, "faccessat": 48, "getdents64": 61, "readlinkat": 78, "statx": 291, "faccessat2": 439,
    },
    checked={
        "fcntl": 25, "ioctl": 29, "openat": 56, "newfstatat": 79, "kill": 129, "tgkill": 131, "clone": 220,
        "prlimit64": 261, "clone3": 435,
    },
)  # fmt: skip

MACHINES = {"x86_64": _X86_64, "aarch64": _AARCH64}


def this_machine() -> SyscallTable:
    """Returns the table of this machine's processor.

    Raises:
        OSError: There is no table for this processor; then untrusted code can't be run.
    """
    name = platform.machine()
    if name not in MACHINES:
        raise OSError(f"a processor of type {name} has no list of system calls; only {', '.join(MACHINES)} have one")
    return MACHINES[name]
