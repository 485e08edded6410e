"""The process runtime: real sandboxes, their isolation, and tasks that outlive their worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from protocol.identity.keys import Key
from protocol.wire.tasks import MEBIBYTE, NetworkMode, Resources
from tests.worker.specs import run_to_end, spec_for, text_of
from worker.runtime.control_groups import find_control_groups
from worker.runtime.interface import ContainerStatus, LaunchRefused, Mount, NoSuchContainer
from worker.runtime.process import ProcessRuntime
from worker.state import make_volume

LOOK = """
import json, os, sys
def text(path):
    try: return open(path).read()
    except OSError as error: return error.strerror
def can(path):
    try: open(path, 'w').close()
    except OSError: return False
    return True
status = dict(line.split(':\\t', 1) for line in text('/proc/self/status').splitlines() if ':\\t' in line)
print(json.dumps({
    'effective': status['CapEff'].strip(), 'no_new_privileges': status['NoNewPrivs'].strip(),
    'user': os.getuid(), 'groups': os.getgroups(), 'shadow': text('/etc/shadow'), 'secret': text(sys.argv[1]),
    'root_writable': can('/written'), 'usr_writable': can('/usr/written'), 'tmp_writable': can('/tmp/written'),
    'data_writable': can('/data/written'), 'fixed_writable': can('/fixed/written'),
    'processes': sum(name.isdigit() for name in os.listdir('/proc')), 'home': os.path.exists('/home'),
    'interfaces': [line.split(':')[0].strip() for line in text('/proc/net/dev').splitlines()[2:]],
    'environment': dict(os.environ), 'devices': sorted(os.listdir('/dev')),
}))
"""


async def test_a_task_is_confined_and_sees_only_its_mounts_and_variables(
    process_runtime: ProcessRuntime, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("the host's")
    for name in ("data", "fixed"):
        make_volume(tmp_path / name, user=process_runtime.user)
    spec = spec_for(
        process_runtime._node,
        "ignored:1",
        ["python3", "-c", LOOK, str(tmp_path / "secret")],
        environment={"GIVEN": "value", "LD_PRELOAD": "/data/evil.so"},
        mounts=(
            Mount(source=tmp_path / "data", target="/data"),
            Mount(source=tmp_path / "fixed", target="/fixed", read_only=True),
        ),
    )
    container, lines = await run_to_end(process_runtime, spec)
    assert container.exit_code == 0, text_of(lines)
    seen = json.loads(next(line.text for line in lines if line.stream == "stdout"))
    assert seen["effective"] == "0" * 16
    assert seen["no_new_privileges"] == "1"
    assert seen["user"] != 0
    assert seen["groups"] in ([], [os.getgid()])
    assert seen["shadow"] == seen["secret"] == "No such file or directory"
    assert not any(seen[f"{place}_writable"] for place in ("root", "usr", "fixed"))
    assert seen["tmp_writable"]
    assert seen["data_writable"]
    assert seen["processes"] <= 3
    assert not seen["home"]
    assert seen["interfaces"] == ["lo"]
    assert seen["environment"]["GIVEN"] == "value"
    assert not {"sda", "vda", "kmsg", "mem"} & set(seen["devices"])
    written = (tmp_path / "data" / "written").stat()
    assert written.st_uid == (process_runtime.user or os.getuid())


async def test_secrets_appear_in_no_command_line_and_no_file(process_runtime: ProcessRuntime, tmp_path: Path) -> None:
    secret = "hunter2-hunter2"
    spec = spec_for(process_runtime._node, "x", ["sleep", "30"], environment={"TOKEN": secret})
    await process_runtime.start(spec)
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if secret in line]
    files = [path for path in (tmp_path / "processes").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]


async def test_memory_is_limited(process_runtime: ProcessRuntime) -> None:
    hungry = "x = []\nwhile True: x.append(b'x' * (1 << 20))"
    spec = spec_for(
        process_runtime._node,
        "x",
        ["python3", "-c", hungry],
        resources=Resources(memory_bytes=64 * MEBIBYTE, pids=64),
    )
    container, _ = await run_to_end(process_runtime, spec)
    assert container.exit_code == 137
    assert container.out_of_memory
    await process_runtime.remove(spec.name)
    assert find_control_groups(spec.name) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="without root and control groups, the user's own limit counts")
async def test_processes_are_limited(process_runtime: ProcessRuntime) -> None:
    forking = (
        "import os, time\n"
        "for count in range(100):\n"
        "    try:\n"
        "        if os.fork() == 0: time.sleep(60); os._exit(0)\n"
        "    except OSError: break\n"
        "print(count, flush=True); os._exit(0)\n"
    )
    resources = Resources(memory_bytes=256 * MEBIBYTE, pids=16)
    spec = spec_for(process_runtime._node, "x", ["python3", "-c", forking], resources=resources)
    _, lines = await run_to_end(process_runtime, spec)
    assert 0 < int(text_of(lines)) <= 16


async def test_stopping_sends_sigterm_and_kills_after_the_grace_period(process_runtime: ProcessRuntime) -> None:
    polite = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('up', flush=True)\ntime.sleep(60)"
    )
    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"
    for program, code in ((polite, 7), (deaf, 137)):
        spec = spec_for(process_runtime._node, "x", ["python3", "-c", program], stop_grace=timedelta(seconds=0.5))
        await process_runtime.start(spec)
        async for _ in process_runtime.output(spec.name, after_ns=0):
            break
        await process_runtime.stop(spec.name, grace=spec.stop_grace)
        (container,) = await process_runtime.containers()
        assert (container.status, container.exit_code) == (ContainerStatus.EXITED, code)
        await process_runtime.remove(spec.name)
        await process_runtime.remove(spec.name)
    assert await process_runtime.containers() == ()


async def test_a_removed_task_leaves_no_process_and_no_file(process_runtime: ProcessRuntime, tmp_path: Path) -> None:
    program = (
        "import subprocess, time\nsubprocess.Popen(['sleep', '301'], start_new_session=True)\n"
        "print('up', flush=True)\ntime.sleep(302)"
    )
    spec = spec_for(process_runtime._node, "x", ["python3", "-c", program])
    await process_runtime.start(spec)
    async for _ in process_runtime.output(spec.name, after_ns=0):
        break

    def left() -> list[list[str]]:
        commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        return [command for command in commands if "301" in command or program in command]

    assert left()
    await process_runtime.remove(spec.name)
    async with asyncio.timeout(60):
        while left():  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.05)
    assert list((tmp_path / "processes").iterdir()) == []


async def test_a_task_outlives_its_worker_and_is_found_again(process_runtime: ProcessRuntime, tmp_path: Path) -> None:
    """The worker that started the task is killed.

    The next worker continues to read the output where the first one stopped.
    """
    spec_text = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from protocol.identifiers import address\n"
        "from tests.worker.specs import spec_for\n"
        "from worker.runtime.process import ProcessRuntime\n"
        "node = address(sys.argv[1])\n"
        "runtime = ProcessRuntime(node, directory=Path(sys.argv[2]))\n"
        "program = 'import time\\nfor i in range(40): print(i, flush=True); time.sleep(.1)'\n"
        "asyncio.run(runtime.start(spec_for(node, 'x', ['python3', '-c', program])))\n"
        "print('started', flush=True)\n"
        "import time; time.sleep(60)\n"
    )
    command = [sys.executable, "-c", spec_text, process_runtime._node, str(tmp_path / "processes")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"started\n"
        os.kill(worker.pid, signal.SIGKILL)
    (container,) = await process_runtime.containers()
    assert container.status is ContainerStatus.RUNNING
    lines = [line.text async for line in process_runtime.output(container.name, after_ns=0)]
    assert lines == [str(number) for number in range(40)]
    (container,) = await process_runtime.containers()
    assert (container.status, container.exit_code) == (ContainerStatus.EXITED, 0)


async def test_killing_the_keeper_ends_the_task_and_counts_as_a_failure(
    process_runtime: ProcessRuntime, tmp_path: Path
) -> None:
    spec = spec_for(process_runtime._node, "x", ["sleep", "303"])
    await process_runtime.start(spec)
    keeper = json.loads((tmp_path / "processes" / spec.name / "keeper.json").read_text())
    os.kill(keeper["pid"], signal.SIGKILL)
    async with asyncio.timeout(60):
        while (await process_runtime.containers())[0].status is not ContainerStatus.EXITED:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.02)
    (container,) = await process_runtime.containers()
    assert container.exit_code == 137
    left = [process for process in psutil.process_iter(["cmdline"]) if "303" in (process.info["cmdline"] or ())]
    assert not psutil.wait_procs(left, timeout=60)[1]


async def test_two_workers_do_not_affect_each_others_tasks(process_runtime: ProcessRuntime, tmp_path: Path) -> None:
    other = ProcessRuntime(Key.generate().address, directory=tmp_path / "other")
    theirs = spec_for(other._node, "x", ["sleep", "30"])
    await other.start(theirs)
    try:
        assert await process_runtime.containers() == ()
        for attempt in (process_runtime.stop(theirs.name, grace=timedelta()), process_runtime.remove(theirs.name)):
            with pytest.raises(NoSuchContainer):
                await attempt
        assert other.user is None or other.user != process_runtime.user
    finally:
        await other.remove(theirs.name)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"command": ()}, "launch-refused"),
        ({"network": NetworkMode.HOST}, "host-network-refused"),
        # without Docker there is no bridge network, so the task uses the machine's network
        ({"network": NetworkMode.BRIDGE}, "host-network-refused"),
    ],
)
async def test_a_task_that_cannot_run_here_is_refused_with_a_code(
    process_runtime: ProcessRuntime, changes: dict[str, Any], code: str
) -> None:
    with pytest.raises(LaunchRefused) as refused:
        await process_runtime.start(spec_for(process_runtime._node, "x", **{"command": ["true"], **changes}))
    assert refused.value.code == code
    assert await process_runtime.containers() == ()


@pytest.mark.parametrize(
    "target",
    [
        f"{sys.base_prefix}/lib",
        sys.prefix,
        str(Path(sys.base_prefix).parent),
        "/usr",
        "//usr/lib",
        "/lib/x86_64-linux-gnu",
        "/muster",
        "/muster/enter.py",
        "/etc",
        "/data/inner",
        "/data",
    ],
)
async def test_a_volume_cannot_replace_code_that_runs_before_the_task(
    process_runtime: ProcessRuntime, tmp_path: Path, target: str
) -> None:
    """A worker that is root enters the sandbox as root.

    It would execute the task owner's Python there.
    """
    module = tmp_path / "volume" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "encodings"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text("import posix\nposix.write(1, b'user %d' % posix.getuid())\nposix._exit(0)\n")
    (tmp_path / "data").mkdir()
    mounts = (
        Mount(source=tmp_path / "data", target="/data"),
        Mount(source=tmp_path / "volume", target=target, read_only=True),
    )
    with pytest.raises(LaunchRefused):
        await process_runtime.start(spec_for(process_runtime._node, "x", ["true"], mounts=mounts))
    assert await process_runtime.containers() == ()


async def test_a_missing_program_ends_with_127_and_is_named(process_runtime: ProcessRuntime) -> None:
    container, lines = await run_to_end(process_runtime, spec_for(process_runtime._node, "x", ["no-such-program"]))
    assert container.exit_code == 127
    assert "no-such-program" in text_of(lines)


async def test_sandbox_support_is_checked_by_creating_one(process_runtime: ProcessRuntime) -> None:
    assert "bubblewrap" in await process_runtime.check()


async def test_readable_paths_are_visible_even_below_tmp(process_runtime: ProcessRuntime, tmp_path: Path) -> None:
    shared = tmp_path / "data-set"
    shared.mkdir(mode=0o755)
    (shared / "rows").write_text("all of them")
    runtime = ProcessRuntime(process_runtime._node, directory=tmp_path / "processes", readable=(shared,))
    spec = spec_for(runtime._node, "ignored:1", ["python3", "-c", f"print(open({str(shared / 'rows')!r}).read())"])
    container, lines = await run_to_end(runtime, spec)
    await runtime.close()
    assert container.exit_code == 0, text_of(lines)
    assert "all of them" in text_of(lines)


async def test_a_single_readable_file_is_visible_and_its_neighbours_are_not(
    process_runtime: ProcessRuntime, tmp_path: Path
) -> None:
    for name in ("rows.jsonl", "private"):
        (tmp_path / name).write_text(name)
    named = tmp_path / "named.jsonl"
    named.symlink_to("rows.jsonl")
    runtime = ProcessRuntime(process_runtime._node, directory=tmp_path / "processes", readable=(named,))
    look = f"import os; print(os.listdir({str(tmp_path)!r}), open({str(named)!r}).read()); open({str(named)!r}, 'a')"
    container, lines = await run_to_end(runtime, spec_for(runtime._node, "x", ["python3", "-c", look]))
    await runtime.close()
    assert container.exit_code == 1
    assert "rows.jsonl" in text_of(lines)
    assert "private" not in text_of(lines)
    assert "Read-only file system" in text_of(lines) or "Permission denied" in text_of(lines)


async def test_an_environment_behind_symbolic_links_is_visible(
    process_runtime: ProcessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example is a checkout with a link `.venv`, below a folder that is itself a link."""
    checkout, real = tmp_path / "checkout", tmp_path / "disk" / "environments" / "one"
    for place in (checkout, real / "bin"):
        place.mkdir(parents=True)
        place.chmod(0o755)
    (real / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "middle").symlink_to("disk/environments")
    (checkout / ".venv").symlink_to("../middle/one")
    python = str(checkout / ".venv" / "bin" / "python")
    monkeypatch.setattr(sys, "prefix", str(checkout / ".venv"))
    monkeypatch.setattr(sys, "executable", python)
    runtime = ProcessRuntime(process_runtime._node, directory=tmp_path / "processes", readable=(checkout,))
    container, lines = await run_to_end(runtime, spec_for(runtime._node, "x", [python, "-c", "print('it runs')"]))
    await runtime.close()
    assert (container.exit_code, "it runs" in text_of(lines)) == (0, True), text_of(lines)


async def test_a_task_can_read_the_online_processors_and_nothing_else_in_sys(
    process_runtime: ProcessRuntime,
) -> None:
    look = "import os; print(open('/sys/devices/system/cpu/online').read(), sorted(os.listdir('/sys')))"
    spec = spec_for(process_runtime._node, "ignored:1", ["python3", "-c", look])
    container, lines = await run_to_end(process_runtime, spec)
    assert container.exit_code == 0, text_of(lines)
    online = Path("/sys/devices/system/cpu/online").read_text().strip()
    assert f"{online}\n ['devices']" in text_of(lines)


async def test_tasks_run_with_the_configured_niceness(process_runtime: ProcessRuntime, tmp_path: Path) -> None:
    runtime = ProcessRuntime(process_runtime._node, directory=tmp_path / "processes", niceness=3)
    spec = spec_for(runtime._node, "ignored:1", ["python3", "-c", "import os; print('niceness', os.nice(0))"])
    container, lines = await run_to_end(runtime, spec)
    await runtime.close()
    assert container.exit_code == 0, text_of(lines)
    assert f"niceness {min(19, os.nice(0) + 3)}" in text_of(lines)
