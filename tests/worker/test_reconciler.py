"""The reconciler on real runtimes: tasks run, outlive the worker, and are reported."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protocol.runtime.clock import SystemClock
from protocol.wire.assignments import AssignmentState
from protocol.wire.tasks import MEBIBYTE, Assignment, Resources, TaskSpec
from tests.worker.conftest import Engine
from worker.runtime.docker import DockerRuntime
from worker.runtime.interface import Runtime
from worker.runtime.process import ProcessRuntime
from worker.state import StateDirectory
from worker.tasks.reconciler import Reconciler
from worker.tasks.saved_state import RunningTask

RUNNING, COMPLETED, FAILED = AssignmentState.RUNNING, AssignmentState.COMPLETED, AssignmentState.FAILED
TICK = "import time\nfor i in range(1000): print(i, flush=True); time.sleep(.05)"


@pytest.fixture(params=["docker", "process"])
def runtime(request: pytest.FixtureRequest) -> Any:
    """Yields each runtime in turn."""
    return request.getfixturevalue(f"{request.param}_runtime")


@pytest.fixture
def image(runtime: Runtime, request: pytest.FixtureRequest) -> str:
    if isinstance(runtime, DockerRuntime):
        engine: Engine = request.getfixturevalue("engine")
        return engine.image
    return "host:none"


def asked(image: str, program: str, **changes: Any) -> Assignment:
    assignment = {name: changes.pop(name) for name in ("generation", "restart_nonce", "id") if name in changes}
    spec = {
        "name": "task",
        "image": image,
        "command": ("python3", "-u", "-c", program),
        "resources": Resources(memory_bytes=128 * MEBIBYTE),
        "network": "none",
        "stop_grace_seconds": 0.3,
        **changes,
    }
    return Assignment.model_validate(
        {"id": "a" * 32, "task_id": "b" * 32, "generation": 1, "spec": TaskSpec.model_validate(spec), **assignment}
    )


def reconciler_of(runtime: Any, state: StateDirectory) -> Reconciler:
    async def no_bridge(task: RunningTask) -> None:
        (state.bridges / task.assignment_id).mkdir(parents=True, exist_ok=True)

    return Reconciler(
        runtime=runtime,
        state=state,
        node=runtime._node,
        pool_id=1,
        gpus=(),
        clock=SystemClock(),
        task_user=runtime.user if isinstance(runtime, ProcessRuntime) else None,
        on_task=no_bridge,
    )


@asynccontextmanager
async def running(reconciler: Reconciler) -> AsyncIterator[Reconciler]:
    """Runs the reconciler, and stops it abruptly as a kill would, without shutdown."""
    task = asyncio.create_task(reconciler.run())
    try:
        yield reconciler
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(question: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if answer := question():
            return answer
        await asyncio.sleep(0.02)
    raise AssertionError(what)


def state_is(reconciler: Reconciler, *states: AssignmentState) -> Callable[[], bool]:
    return lambda: (report := reconciler.report()) is not None and report.state in states


def written(reconciler: Reconciler) -> list[str]:
    lines = reconciler.logs.read(0, most=5000) if reconciler.logs is not None else []
    return [line.text for line in lines if line.stream == "stdout"]


async def nothing_left(runtime: Runtime) -> None:
    deadline = time.monotonic() + 90
    while await runtime.containers():
        assert time.monotonic() < deadline, "the container is not removed"
        await asyncio.sleep(0.05)


async def test_a_task_runs_to_completion_and_its_output_is_kept(
    runtime: Any, image: str, state: StateDirectory
) -> None:
    async with running(reconciler_of(runtime, state)) as reconciler:
        reconciler.offer(asked(image, "import os; print(os.environ['MUSTER_TASK_NAME'], '${MUSTER_GPU_COUNT}')"))
        await until(state_is(reconciler, COMPLETED), "it completes")
        await until(lambda: written(reconciler) == ["task 0"], "its output arrives")
        report = reconciler.report()
        assert report is not None
        assert (report.exit_code, report.restarts) == (0, 0)
        reconciler.offer(None)
        await nothing_left(runtime)


async def test_a_running_task_continues_when_the_worker_restarts(
    runtime: Any, image: str, state: StateDirectory
) -> None:
    assignment = asked(image, TICK)
    async with running(reconciler_of(runtime, state)) as first:
        first.offer(assignment)
        await until(lambda: first.logs is not None and first.logs.next_sequence > 3, "it talks")
    (before,) = await runtime.containers()
    async with running(reconciler_of(runtime, state)) as second:
        await until(lambda: second.logs is not None and second.logs.next_sequence > 10, "it is heard before any answer")
        second.offer(assignment)
        await asyncio.sleep(0.5)
        assert second.offer(assignment.model_copy(update={"generation": 2})) == ""
        await until(lambda: second.progress and second.progress.generation == 2, "the new generation is taken")
        assert "older" in second.offer(assignment)
        (after,) = await runtime.containers()
        assert (after.name, after.started_at) == (before.name, before.started_at)
        numbers = written(second)
        assert numbers == [str(number) for number in range(len(numbers))]
        report = second.report()
        assert report is not None
        assert (report.state, report.restarts) == (RUNNING, 0)
        second.offer(None)
        await nothing_left(runtime)


async def test_a_completed_task_is_not_run_again_after_a_restart(
    runtime: Any, image: str, state: StateDirectory
) -> None:
    assignment = asked(image, "print('once')")
    async with running(reconciler_of(runtime, state)) as first:
        first.offer(assignment)
        await until(state_is(first, COMPLETED), "it completes")
    async with running(reconciler_of(runtime, state)) as second:
        second.offer(assignment)
        await asyncio.sleep(1.5)
        report = second.report()
        assert report is not None
        assert report.state is COMPLETED
        assert second.progress is not None
        assert second.progress.launches == 1


async def test_a_failing_task_is_retried_and_then_given_up(runtime: Any, image: str, state: StateDirectory) -> None:
    async with running(reconciler_of(runtime, state)) as reconciler:
        reconciler.offer(asked(image, "raise SystemExit(3)", restart={"kind": "on-failure", "attempts": 1}))
        await until(state_is(reconciler, FAILED), "it is given up")
        report = reconciler.report()
        assert report is not None
        assert (report.exit_code, report.restarts) == (3, 1)
        assert "2 times in a row" in report.detail


async def test_a_refused_task_is_remembered_until_another_starts(
    runtime: Any, image: str, state: StateDirectory
) -> None:
    async with running(reconciler_of(runtime, state)) as converger:
        converger.offer(asked(image, "pass", network="host"))
        await until(state_is(converger, FAILED), "it is refused")
        converger.offer(None)
        assert "host" in converger.refused
        assert "set allow_host_network" in converger.refused
        converger.offer(asked(image, "pass", id="d" * 32))
        await until(state_is(converger, COMPLETED), "another runs")
        assert converger.refused == ""


async def test_a_failure_is_reported_with_the_last_lines_of_output(
    runtime: Any, image: str, state: StateDirectory
) -> None:
    program = "print('line\\n' * 20)\nprint('no GPU here \\x1b[2J\\x00')\nprint('x' * 5000)\nraise SystemExit(3)"
    async with running(reconciler_of(runtime, state)) as reconciler:
        reconciler.offer(asked(image, program, restart={"kind": "never"}))
        await until(state_is(reconciler, FAILED), "it failed")
        report = reconciler.report()
    assert report is not None
    first, *quoted = report.detail.split("\n")
    assert first == "ended with exit code 3"
    assert quoted[-2:] == ["no GPU here \\x1b[2J\\x00", "x" * 240 + "…"]
    assert len(quoted) <= 8
    again = reconciler_of(runtime, state).report()
    assert again is not None
    assert again.detail == report.detail, "it outlives the worker"


async def test_a_changed_task_replaces_the_container_and_keeps_the_volume(
    runtime: Any, image: str, state: StateDirectory
) -> None:
    write = "open('/muster/data/kept', 'w').write('x'); import time; time.sleep(600)"
    async with running(reconciler_of(runtime, state)) as reconciler:
        reconciler.offer(asked(image, write))
        kept = state.tasks / ("b" * 32) / "data" / "kept"
        await until(kept.exists, "the file is written")
        read = "print(open('/muster/data/kept').read())"
        reconciler.offer(asked(image, read, generation=2))
        await until(state_is(reconciler, COMPLETED), "the new content ran")
        reconciler.offer(asked(image, read, generation=3, restart_nonce=1))
        await until(lambda: reconciler.progress and reconciler.progress.launches == 3, "it was run again as asked")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environment": {"X": "${MUSTER_NO_SUCH}"}}, "MUSTER_NO_SUCH"),
        ({"gpus": {"count": 1}}, "0 of this machine's 0 GPUs match"),
        ({"network": "host"}, "does not allow"),
        ({"volumes": [{"target": "/proc/x"}]}, "/proc/x"),
        ({"resources": {"disk_bytes": 1 << 60}, "restart": {"kind": "never"}}, "of disk"),
        ({"volumes": [{"target": "/data/../etc"}]}, "can't be mounted at"),
    ],
)
async def test_a_task_that_cannot_run_here_fails_at_once_with_a_reason(
    runtime: Any, image: str, state: StateDirectory, changes: dict[str, Any], words: str
) -> None:
    async with running(reconciler_of(runtime, state)) as reconciler:
        reconciler.offer(asked(image, "print()", **changes))
        await until(state_is(reconciler, FAILED), "it fails")
        report = reconciler.report()
        assert report is not None
        assert words in report.detail
        assert report.restarts == 0
        assert await runtime.containers() == ()


async def test_a_missing_image_is_reported_by_its_name(docker_runtime: DockerRuntime, state: StateDirectory) -> None:
    missing = f"127.0.0.1:9/nobody/{secrets.token_hex(4)}:1"
    async with running(reconciler_of(docker_runtime, state)) as reconciler:
        reconciler.offer(asked(missing, "print()", restart={"kind": "never"}))
        await until(state_is(reconciler, FAILED), "it fails")
        report = reconciler.report()
        assert report is not None
        assert missing in report.detail


async def test_an_unreachable_engine_is_reported_and_tried_again(
    engine: Engine, docker_runtime: DockerRuntime, state: StateDirectory, tmp_path: Path
) -> None:
    socket = tmp_path / "docker.sock"
    late = DockerRuntime(docker_runtime._node, socket=socket)
    async with running(reconciler_of(late, state)) as reconciler:
        reconciler.offer(asked(engine.image, "print('at last')", restart={"kind": "never"}))
        await until(lambda: "does not answer" in reconciler.runtime_error, "the trouble is named")
        socket.symlink_to(engine.socket)
        await until(state_is(reconciler, COMPLETED), "it ran once the engine was up")
    await late.close()


async def test_a_shutdown_stops_the_task_within_its_grace_period(
    runtime: Any, image: str, state: StateDirectory
) -> None:
    async with running(reconciler_of(runtime, state)) as reconciler:
        reconciler.offer(asked(image, TICK))
        await until(state_is(reconciler, RUNNING), "it runs")
    await asyncio.wait_for(reconciler.shut_down(), 60)
    assert await runtime.containers() == ()
    report = reconciler.report()
    assert report is not None
    assert report.state is AssignmentState.STOPPED
