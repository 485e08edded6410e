"""Sandboxes are started, replaced, ended with their owner, and refused where isolation fails."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil
import pytest

from rollouts.sandbox import Isolation, Job, JobKind, Sandboxes, SandboxSettings, SandboxUnavailable, launch, process
from rollouts.sandbox.inside import syscalls

HELLO = Job(module="inside.program", payload={"source": "print('hello')"})
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

OWNER = """
import os, sys, time
from rollouts.sandbox import *
sandboxes = Sandboxes(SandboxSettings(isolation=Isolation(sys.argv[1])))
source = "import os, time; os.write(3, b'x'); time.sleep(999)"
running, says_so = os.pipe()
with sandboxes.borrow(JobKind.SOLUTION) as sandbox:
    sandbox.start(Job(module="inside.program", payload={"source": source}, answers=says_so))
    os.read(running, 1)
    print(sandbox.pid, flush=True)
    time.sleep(999)
"""


def end_all(pid: int) -> None:
    """Kills a process and its children from the top, because a server whose job dies first would report it."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(processes, timeout=90)


def test_a_killed_sandbox_is_replaced(sandboxes: Sandboxes) -> None:
    with sandboxes.borrow(JobKind.SOLUTION) as sandbox:
        end_all(sandbox.pid)
    assert sandboxes.run(JobKind.SOLUTION, HELLO).output == b"hello\n"


def test_a_sandbox_that_breaks_during_a_job_is_not_an_outcome_of_the_job(sandboxes: Sandboxes) -> None:
    with sandboxes.borrow(JobKind.SOLUTION) as sandbox:
        running = sandbox.start(Job(module="inside.program", payload={"source": "import time; time.sleep(99)"}))
        end_all(sandbox.pid)
        with pytest.raises(SandboxUnavailable):
            running.finish()
    assert sandboxes.run(JobKind.SOLUTION, HELLO).succeeded


@pytest.mark.parametrize("isolation", [pytest.param(Isolation.NAMESPACES, marks=needs_bubblewrap), Isolation.PROCESS])
def test_a_sandbox_and_its_job_end_when_their_owner_is_killed(isolation: Isolation) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, isolation.value], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        first = psutil.Process(int(owner.stdout.readline()))
        of_sandbox = [first, *first.children(recursive=True)]
        owner.kill()
    _, alive = psutil.wait_procs(of_sandbox, timeout=90)
    assert alive == []
    assert len(of_sandbox) >= 2


def test_threads_share_a_bounded_number_of_sandboxes(sandboxes: Sandboxes) -> None:
    outputs: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: outputs.append(sandboxes.run(JobKind.SOLUTION, HELLO).output)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == [b"hello\n"] * 8


def test_without_bubblewrap_process_isolation_is_used_unless_the_settings_forbid_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    left_open = Sandboxes(SandboxSettings())
    assert left_open.isolation is Isolation.PROCESS
    assert left_open.run(JobKind.SOLUTION, HELLO).succeeded
    left_open.close()
    strict = Sandboxes(SandboxSettings(isolation=Isolation.NAMESPACES))
    with pytest.raises(SandboxUnavailable, match="no bubblewrap") as refused:
        strict.run(JobKind.SOLUTION, HELLO)
    assert "apt install bubblewrap" in refused.value.hint


@needs_bubblewrap
def test_a_package_behind_symbolic_links_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some installers link packages from a cache; the link must also resolve inside the sandbox."""
    site, store = tmp_path / "site", tmp_path / "store" / "sympy"
    for place in (site, store):
        place.mkdir(parents=True)
    (store / "__init__.py").write_text("it is here")
    (tmp_path / "cache").symlink_to("store")
    (site / "sympy").symlink_to("../cache/sympy")
    origin = site / "sympy" / "__init__.py"
    monkeypatch.setattr(launch, "find_spec", lambda _: ModuleSpec("sympy", None, origin=str(origin)))
    command = launch.prepare(JobKind.MATHEMATICS, Isolation.NAMESPACES).command
    look = [*command[: command.index("--") + 1], "/usr/bin/cat", str(origin)]
    assert subprocess.run(look, capture_output=True, text=True, check=False).stdout == "it is here"


@needs_bubblewrap
def test_namespaces_are_used_where_they_work() -> None:
    found = Sandboxes(SandboxSettings())
    assert found.isolation is Isolation.NAMESPACES
    found.close()


@needs_bubblewrap
def test_a_sandbox_that_shows_what_it_must_hide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_HIDDEN", ("/usr/bin",))  # which it does show
    with pytest.raises(SandboxUnavailable, match=r"leaks here.*read /usr/bin"):
        process.Sandbox(JobKind.MATHEMATICS, Isolation.NAMESPACES)


def test_the_isolation_setting_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SANDBOX_ISOLATION", "namespaces")
    assert SandboxSettings.load().isolation is Isolation.NAMESPACES


@pytest.mark.parametrize(
    ("header", "machine"),
    [("x86_64-linux-gnu/asm/unistd_64.h", "x86_64"), ("asm-generic/unistd.h", "aarch64")],
)
def test_system_call_numbers_match_those_of_the_kernel(header: str, machine: str) -> None:
    path = Path("/usr/include") / header
    if not path.exists():
        pytest.skip(f"no kernel header {path}")
    defined = {
        name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())
    }
    defined.setdefault("newfstatat", defined.get("fstatat", -1))
    table = syscalls.MACHINES[machine]
    ours = {**table.plain, **table.paths, **table.checked}
    assert ours == {name: defined[name] for name in ours}


def test_closing_sandboxes_leaves_no_process() -> None:
    before = children()
    found = Sandboxes(SandboxSettings())
    found.run(JobKind.SOLUTION, HELLO)
    found.close()
    gone(before)


def test_a_busy_sandbox_ends_after_its_job_when_all_are_closed() -> None:
    before = children()
    found = Sandboxes(SandboxSettings())
    with found.borrow(JobKind.SOLUTION) as sandbox:
        found.close()
        assert sandbox.run(HELLO).succeeded
    gone(before)


def children() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}


def gone(before: set[int]) -> None:
    until = time.monotonic() + 90
    while children() - before and time.monotonic() < until:
        time.sleep(0.01)
    assert children() <= before


def test_a_machine_that_cannot_start_a_process_reports_no_sandbox_and_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    before = psutil.Process().num_fds()
    with pytest.raises(SandboxUnavailable, match="can't be started"):
        process.Sandbox(JobKind.SOLUTION, Isolation.PROCESS)
    assert psutil.Process().num_fds() == before
