"""Hostile programs end quickly with a distinct outcome and change nothing; one case per idea, in both isolations."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from rollouts.sandbox import Job, JobEnding, JobKind, JobLimits, JobOutcome, Sandboxes

LIMITS = JobLimits(cpu=timedelta(seconds=5), wall=timedelta(seconds=60), memory_bytes=256 << 20, output_bytes=64 * 1024)
SOON = replace(LIMITS, wall=timedelta(seconds=0.3))
"""For endless programs; the others keep the usual limits, so that a busy machine does not end them first."""

REFUSED = {
    "fork": "import os; os.fork()",
    "fork by a library": "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
    "spawn a program": "import subprocess; subprocess.run(['/bin/true'])",
    "run a shell": "import os; assert os.system('true') == 0",
    "become a program": "import os; os.execv('/bin/true', ['true'])",
    "open a socket": "import socket; socket.socket()",
    "open a local socket": "import socket; socket.socketpair()",
    "look up a name": "import socket; socket.create_connection(('example.org', 80), timeout=1)",
    "read the accounts": "open('/etc/passwd').read()",
    "read the environment of others": "open('/proc/1/environ', 'rb').read()",
    "read its own memory map": "open('/proc/self/maps').read()",
    "write a file": "open('/tmp/muster-was-here', 'w').write('x')",
    "write in its directory": "open('x', 'w')",
    "make a directory": "import os; os.mkdir('/tmp/muster-was-here')",
    "remove a file": "import os; os.remove('/muster/inside/server.py')",
    "change a mode": "import os; os.chmod('/', 0o777)",
    "kill its parent": "import os; os.kill(os.getppid(), 9)",
    "kill everybody": "import os; os.kill(-1, 9)",
    "kill its group": "import os; os.killpg(0, 9)",
    "trace its parent": "import ctypes, os; raise SystemExit(ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) != 0)",
    "change its parent's limits": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "slow its parent down": "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "raise a limit": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "become root": "import os; os.setuid(0); os.setresuid(0, 0, 0) or exit(os.getuid() != 0 or 1)",
    "keep memory": "import os; os.memfd_create('x')",
    "share memory": "from multiprocessing import shared_memory as s; s.SharedMemory(create=True, size=10)",
    "enter a namespace": "import ctypes; raise SystemExit(ctypes.CDLL(None).unshare(0x10000000) != 0)",
    "take the filter off": "import ctypes; raise SystemExit(ctypes.CDLL(None).prctl(22, 0, 0, 0, 0) != 0)",
    "mount": "import ctypes; raise SystemExit(ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, 0) != 0)",
    "set the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
}
"""Programs that fail with an exception of their own."""

ENDED = {
    "loop": ("while True: pass", {JobEnding.OUT_OF_TIME}),
    "sleep": ("import time; time.sleep(60)", {JobEnding.OUT_OF_TIME}),
    "sleep and ignore": (
        "import signal, time\nfor s in {1, 2, 3, 13, 14, 15, 24}: signal.signal(s, signal.SIG_IGN)\ntime.sleep(99)",
        {JobEnding.OUT_OF_TIME},
    ),
    "loop and ignore": (
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        {JobEnding.OUT_OF_TIME},
    ),
    "wait for nobody": ("import threading; threading.Event().wait()", {JobEnding.OUT_OF_TIME}),
    "fork for ever": ("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", {JobEnding.OUT_OF_TIME}),
    "thread for ever": (
        "import threading, time\nfor _ in iter(int, 1): threading.Thread(target=time.sleep, args=(60,)).start()",
        {JobEnding.OUT_OF_TIME, JobEnding.OUT_OF_MEMORY, JobEnding.EXITED},
    ),
    "allocate": ("x = bytearray(1 << 40)", {JobEnding.OUT_OF_MEMORY}),
    "allocate in steps": ("x = []\nwhile True: x.append(bytearray(1 << 24))", {JobEnding.OUT_OF_MEMORY}),
    "print for ever": ("while True: print('x' * 1000)", {JobEnding.TOO_MUCH_OUTPUT}),
    "print to the error stream": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", {JobEnding.TOO_MUCH_OUTPUT}),
    "count high": ("print(9 ** 9 ** 9)", {JobEnding.OUT_OF_TIME, JobEnding.OUT_OF_MEMORY}),
    "match a slow pattern": ("import re; re.match(r'(a+)+b', 'a' * 64)", {JobEnding.OUT_OF_TIME}),
    "crash the interpreter": ("import ctypes; ctypes.string_at(0)", {JobEnding.KILLED}),
    "abort": ("import os; os.abort()", {JobEnding.KILLED}),
    "call the other set of system calls": (
        "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)",
        {JobEnding.KILLED},
    ),
    "recurse without end": ("import sys; sys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()", set(JobEnding)),
    "nest brackets": ("(" * 100_000, set(JobEnding)),
    "unpickle itself to death": (
        "import pickle; pickle.loads(b'cos\\nsystem\\n(S\"touch /tmp/muster-was-here\"\\ntR.')",
        {JobEnding.EXITED},
    ),
    "end without a word": ("import os; os._exit(0)", {JobEnding.EXITED}),
    "end in good order": ("raise SystemExit", {JobEnding.EXITED}),
    "be no text": ("\ud800", {JobEnding.EXITED}),
    "hold a zero": ("\0", {JobEnding.EXITED}),
}
"""Programs that are ended, or end themselves, without an effect, with their possible outcomes."""


def run(sandboxes: Sandboxes, source: str, standard_input: bytes = b"", limits: JobLimits = LIMITS) -> JobOutcome:
    """Runs a program."""
    job = Job(module="inside.program", payload={"source": source}, standard_input=standard_input, limits=limits)
    return sandboxes.run(JobKind.SOLUTION, job)


def is_well(sandboxes: Sandboxes) -> bool:
    """Returns whether the next program is run normally by the same sandbox."""
    outcome = run(sandboxes, "print(sum(map(int, input().split())))", b"1 2 3\n")
    return outcome.succeeded and outcome.output == b"6\n"


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED.keys())
def test_a_forbidden_operation_fails_within_the_program(sandboxes: Sandboxes, source: str) -> None:
    outcome = run(sandboxes, source)
    assert (outcome.ending, outcome.succeeded) == (JobEnding.EXITED, False)
    assert is_well(sandboxes)


@pytest.mark.parametrize(("source", "endings"), ENDED.values(), ids=ENDED.keys())
def test_an_endless_program_is_ended(sandboxes: Sandboxes, source: str, endings: set[JobEnding]) -> None:
    began = time.monotonic()
    limits = SOON if JobEnding.OUT_OF_TIME in endings else LIMITS
    assert run(sandboxes, source, limits=limits).ending in endings
    assert time.monotonic() - began < 30  # on an idle machine no case takes half a second
    assert is_well(sandboxes)


def test_processor_time_is_limited_separately_from_wall_time(sandboxes: Sandboxes) -> None:
    outcome = run(sandboxes, "while True: pass", limits=replace(LIMITS, cpu=timedelta(seconds=1)))
    assert (outcome.ending, outcome.undecided, outcome.waited) == (JobEnding.OUT_OF_TIME, True, False)
    assert timedelta(seconds=0.7) < outcome.cpu < timedelta(seconds=3)


def test_exceeding_wall_time_is_distinguished_from_processor_time(sandboxes: Sandboxes) -> None:
    outcome = run(sandboxes, "import time; time.sleep(60)", limits=SOON)
    assert (outcome.ending, outcome.undecided, outcome.waited) == (JobEnding.OUT_OF_TIME, True, True)


def test_hostile_programs_leave_no_process_file_or_limit_behind(sandboxes: Sandboxes) -> None:
    assert is_well(sandboxes)  # so that the sandbox is running
    here = psutil.Process()
    before = {each.pid for each in here.children(recursive=True)}, here.nice(), here.rlimit(psutil.RLIMIT_CPU)
    for source in REFUSED.values():
        run(sandboxes, source)
    after = {each.pid for each in here.children(recursive=True)}, here.nice(), here.rlimit(psutil.RLIMIT_CPU)
    assert after == before
    assert not Path("/tmp/muster-was-here").exists()
