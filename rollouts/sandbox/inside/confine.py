"""Irrevocably drops a process's privileges: resource limits and a system call filter.

The job's process runs this code after the fork and before any untrusted code. The code needs no privileges, so it works
with and without namespaces.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct

from .syscalls import this_machine

_SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVILEGES, _SET_DEATH_SIGNAL = 4, 22, 38, 1
_FILTER_MODE = 2

# Constants of BPF and seccomp (linux/bpf_common.h, linux/seccomp.h).
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32_CALLS = 0x40000000
"""Number of the first x32 system call. x32 is a second ABI of x86-64 kernels, which the filter must block too."""

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
_OPEN_TO_CHANGE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_AT_EMPTY_PATH = 0x1000
_FIOCLEX, _FIONCLEX = 0x5451, 0x5450
_F_DUPFD_CLOEXEC = 1030
_F_SETFL = 4

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def hide_process() -> None:
    """Prevents other processes of this user from reading or tracing this one; forked processes are protected too."""
    _prctl(_SET_DUMPABLE, 0)


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the thread that forked it ends; exits if that thread has ended."""
    _prctl(_SET_DEATH_SIGNAL, 9)
    if os.getppid() != parent:
        os._exit(1)


def set_limits(*, cpu_seconds: int, memory_bytes: int) -> None:
    """Sets resource limits; a tighter existing limit stays."""
    limits = {
        resource.RLIMIT_CPU: (cpu_seconds, cpu_seconds + 1),
        resource.RLIMIT_AS: (memory_bytes, memory_bytes),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_NPROC: (128, 128),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_STACK: (64 << 20, 64 << 20),
    }
    for kind, (soft, hard) in limits.items():
        ceiling = resource.getrlimit(kind)[1]
        most = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
        resource.setrlimit(kind, (min(soft, most), most))


def filter_system_calls(*, may_read_files: bool) -> None:
    """Restricts this process to the system calls listed in `syscalls.py`; others fail with EPERM.

    Args:
        may_read_files: Whether files can be opened for reading and inspected; only if the visible file system contains
            nothing confidential.

    Raises:
        OSError: The kernel refuses filters, or this processor is unknown.
    """
    code = b"".join(_assemble(may_read_files=may_read_files))
    program = _Program(length=len(code) // 8, instructions=code)
    _prctl(_SET_NO_NEW_PRIVILEGES, 1)
    if _libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not accept a filter of system calls")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _return(action: int) -> bytes:
    return _instruction(_RETURN, action)


def _low(argument: int) -> bytes:
    """Loads the low half of an argument; both supported processors are little-endian."""
    return _load(_ARGUMENTS_AT + 8 * argument)


def _refuse(number: int = errno.EPERM) -> bytes:
    return _return(_REFUSE | number)


def _assemble(*, may_read_files: bool) -> list[bytes]:
    machine = this_machine()
    code = [_load(_MACHINE_AT), _instruction(_JUMP_EQUAL, machine.audit, if_true=1), _return(_KILL_PROCESS)]
    code += [_load(_NUMBER_AT), _instruction(_JUMP_AT_LEAST, _X32_CALLS, if_false=1), _return(_KILL_PROCESS)]
    allowed = {**machine.plain, **(machine.paths if may_read_files else {})}
    for number in allowed.values():
        code += [_instruction(_JUMP_EQUAL, number, if_false=1), _return(_ALLOW)]
    for name, body in _bodies(may_read_files=may_read_files).items():
        if name in machine.checked:
            code += [_instruction(_JUMP_EQUAL, machine.checked[name], if_false=len(body)), *body]
    return [*code, _refuse()]


def _bodies(*, may_read_files: bool) -> dict[str, list[bytes]]:
    """Returns the filter code of each call that depends on its arguments. Every body ends in a return."""
    read_only = {"open": _without_bits(1, _OPEN_TO_CHANGE), "openat": _without_bits(2, _OPEN_TO_CHANGE)}
    of_paths = read_only if may_read_files else {"open": [_refuse()], "openat": [_refuse()]}
    return {
        **of_paths,
        # The C library calls newfstatat with an empty path to inspect an open descriptor.
        "newfstatat": [_return(_ALLOW)] if may_read_files else _one_of(3, _AT_EMPTY_PATH),
        "clone": [
            _low(0),
            _instruction(_JUMP_ANY_BIT, _CLONE_NAMESPACES, if_true=2),
            _instruction(_JUMP_ANY_BIT, _CLONE_THREAD, if_false=1),
            _return(_ALLOW),
            _refuse(),
        ],
        "clone3": [_refuse(errno.ENOSYS)],  # a filter can't see clone3's flags; the C library falls back to clone
        "kill": _one_of(0, os.getpid()),
        "tgkill": _one_of(0, os.getpid()),
        "prlimit64": _one_of(0, 0),
        "ioctl": _one_of(1, _FIOCLEX, _FIONCLEX, otherwise=errno.ENOTTY),
        "fcntl": _one_of(1, *range(_F_SETFL + 1), _F_DUPFD_CLOEXEC),
    }


def _one_of(argument: int, *values: int, otherwise: int = errno.EPERM) -> list[bytes]:
    """Allows the call if the argument is one of `values`."""
    steps = [_low(argument)]
    for value in values:
        steps += [_instruction(_JUMP_EQUAL, value, if_false=1), _return(_ALLOW)]
    return [*steps, _refuse(otherwise)]


def _without_bits(argument: int, bits: int) -> list[bytes]:
    """Allows the call if the argument has none of these bits."""
    return [_low(argument), _instruction(_JUMP_ANY_BIT, bits, if_true=1), _return(_ALLOW), _refuse()]
