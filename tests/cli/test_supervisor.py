"""The supervisor: order of starts, gates, restarts, and no leftover processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from cli.devnet.orphan_reaper import NETWORK_ID, end_network, processes_of
from cli.devnet.supervisor import ProcessFailed, ProcessSpec, ProcessState, RestartPolicy, Supervisor

CHILD = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=DETACHED)"
PARENT = f"import subprocess, sys, time; {CHILD}; time.sleep(600)"
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def network_id() -> str:
    return uuid.uuid4().hex


async def eventually(condition: Callable[[], bool], within: float = 60.0) -> None:
    for _ in range(int(within / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen in time")


async def test_processes_start_in_order_and_stop_in_reverse(tmp_path: Path, network_id: str) -> None:
    events: list[str] = []
    async with Supervisor(tmp_path, network_id=network_id, on_event=events.append) as supervisor:
        await supervisor.start(ProcessSpec(name="first", command=SLEEP))
        await supervisor.start(ProcessSpec(name="second", command=SLEEP))
    assert [event for event in events if "ready" in event] == ["first is ready", "second is ready"]
    assert [event for event in events if "stopped" in event] == ["second stopped", "first stopped"]
    assert not list(processes_of(network_id))


async def test_the_restart_policy_on_failure_restarts_failed_processes_only(tmp_path: Path, network_id: str) -> None:
    flag = tmp_path / "flag"
    code = f"import os, sys, time; time.sleep(0.1); there = os.path.exists({str(flag)!r}); open({str(flag)!r}, 'w'); "
    command = [sys.executable, "-c", code + "sys.exit(0 if there else 3)"]
    policy = RestartPolicy(first=timedelta(milliseconds=10))
    async with Supervisor(tmp_path, network_id=network_id) as supervisor:
        process = await supervisor.start(ProcessSpec(name="job", command=command, ends=True, restart=policy))
        await asyncio.wait_for(process.done.wait(), 60)
        assert (process.state, process.restarts, process.exit_code) == (ProcessState.DONE, 1, 0)
    assert process.state is ProcessState.DONE


async def test_processes_of_one_kind_stop_at_the_same_time(tmp_path: Path, network_id: str) -> None:
    told = tmp_path / "told"
    code = (
        "import signal, sys, time, pathlib\n"
        f"told = pathlib.Path({str(told)!r})\n"
        "def end(*_):\n"
        "    with told.open('a') as file: file.write(sys.argv[1] + ' ')\n"
        # waits until the other process has been signalled too
        "    while len(told.read_text().split()) < 2: time.sleep(0.01)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "told.with_name(sys.argv[1]).touch()\n"
        "time.sleep(600)\n"
    )

    def spec(name: str) -> ProcessSpec:
        async def gate() -> bool:
            return (tmp_path / name).exists()

        return ProcessSpec(name=name, command=[sys.executable, "-c", code, name], gate=gate, kind="pair")

    async with Supervisor(tmp_path, network_id=network_id) as supervisor:
        one, other = [await supervisor.start(spec(name)) for name in ("one", "other")]
    assert (one.exit_code, other.exit_code) == (0, 0)


async def test_start_returns_only_when_the_gate_opens(tmp_path: Path, network_id: str) -> None:
    flag = tmp_path / "flag"
    command = [sys.executable, "-c", f"import time; time.sleep(0.3); open({str(flag)!r}, 'w'); time.sleep(600)"]

    async def gate() -> bool:
        return flag.exists()

    async with Supervisor(tmp_path, network_id=network_id) as supervisor:
        process = await supervisor.start(ProcessSpec(name="slow", command=command, gate=gate))
        assert flag.exists()
        assert process.state is ProcessState.HEALTHY


async def test_a_process_that_ends_before_it_is_ready_is_an_error_with_the_tail_of_its_log(
    tmp_path: Path, network_id: str
) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such table')"]

    async def gate() -> bool:
        return False

    async with Supervisor(tmp_path, network_id=network_id) as supervisor:
        with pytest.raises(ProcessFailed, match="no such table") as caught:
            await supervisor.start(ProcessSpec(name="broken", command=command, gate=gate))
    assert "broken.log" in caught.value.hint


async def test_a_gate_that_never_opens_times_out_with_an_error(tmp_path: Path, network_id: str) -> None:
    async def gate() -> bool:
        raise ConnectionRefusedError

    spec = ProcessSpec(name="deaf", command=SLEEP, gate=gate, ready_within=timedelta(milliseconds=200))
    async with Supervisor(tmp_path, network_id=network_id) as supervisor:
        with pytest.raises(ProcessFailed, match="was not ready"):
            await supervisor.start(spec)
    assert not list(processes_of(network_id))


async def test_a_program_that_does_not_exist_is_named(tmp_path: Path, network_id: str) -> None:
    async with Supervisor(tmp_path, network_id=network_id) as supervisor:
        with pytest.raises(ProcessFailed, match="could not be started"):
            await supervisor.start(ProcessSpec(name="ghost", command=["/no/such/program"]))


async def test_a_killed_process_is_started_again(tmp_path: Path, network_id: str) -> None:
    policy = RestartPolicy(attempts=3, first=timedelta(milliseconds=10))
    async with Supervisor(tmp_path, network_id=network_id) as supervisor:
        process = await supervisor.start(ProcessSpec(name="phoenix", command=SLEEP, restart=policy))
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: process.state is ProcessState.HEALTHY and process.pid not in {None, first})
        assert process.restarts == 1


async def test_a_process_that_keeps_failing_is_given_up_after_its_attempts(tmp_path: Path, network_id: str) -> None:
    policy = RestartPolicy(attempts=2, first=timedelta(milliseconds=10))
    command = [sys.executable, "-c", "print('out of luck')"]
    async with Supervisor(tmp_path, network_id=network_id) as supervisor:
        process = await supervisor.start(ProcessSpec(name="mayfly", command=command, restart=policy))
        error = await asyncio.wait_for(supervisor.failure(), 60)
        assert "out of luck" in error.detail
        assert process.restarts == 2
        assert process.state is ProcessState.FAILED


@pytest.mark.parametrize(("restarts", "seconds"), [(1, 0.5), (2, 1), (3, 2), (6, 15), (60, 15)])
def test_the_delay_before_a_restart_doubles_up_to_a_limit(restarts: int, seconds: float) -> None:
    assert RestartPolicy().wait(restarts) == timedelta(seconds=seconds)


async def test_a_process_that_ignores_sigterm_is_killed_after_its_grace_period(tmp_path: Path, network_id: str) -> None:
    ready = tmp_path / "ready"
    stubborn = (
        "import signal, time, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )

    async def gate() -> bool:
        return ready.exists()

    spec = ProcessSpec(
        name="stubborn", command=[sys.executable, "-c", stubborn], gate=gate, grace=timedelta(milliseconds=100)
    )
    async with Supervisor(tmp_path, network_id=network_id) as supervisor:
        process = await supervisor.start(spec)
    assert process.exit_code == -signal.SIGKILL


async def test_children_of_a_process_end_with_it(tmp_path: Path, network_id: str) -> None:
    parent = PARENT.replace("DETACHED", "False")
    async with Supervisor(tmp_path, network_id=network_id) as supervisor:
        await supervisor.start(
            ProcessSpec(name="parent", command=[sys.executable, "-c", parent], restart=RestartPolicy(attempts=0))
        )
        await eventually(lambda: len(list(processes_of(network_id))) == 2)
    assert not list(processes_of(network_id))


async def test_the_reaper_ends_all_processes_after_kill_9_of_the_supervisor(tmp_path: Path, network_id: str) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from cli.devnet.orphan_reaper import OrphanReaper
from cli.devnet.supervisor import ProcessSpec, Supervisor
async def main():
    guardian = OrphanReaper({network_id!r})
    async with Supervisor(Path({str(tmp_path)!r}), network_id={network_id!r}) as supervisor:
        nested = {PARENT.replace("DETACHED", "True")!r}
        await supervisor.start(ProcessSpec(name="a", command=[sys.executable, "-c", nested]))
        print("up", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    supervisor = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    try:
        assert supervisor.stdout.readline() == b"up\n"
        await eventually(lambda: len(list(processes_of(network_id))) == 2)
        supervisor.kill()
        await eventually(lambda: not list(processes_of(network_id)))
    finally:
        supervisor.kill()
        supervisor.wait()
        supervisor.stdout.close()
        end_network(network_id)


def test_the_orphan_reaper_leaves_other_networks_alone(network_id: str) -> None:
    other = subprocess.Popen(SLEEP, env={**os.environ, NETWORK_ID: "another"})
    try:
        assert end_network(network_id) == 0
        assert psutil.pid_exists(other.pid)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
