"""The Docker runtime on a real engine: limits, confinement, other workers, and errors."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from protocol.errors import InvalidInput
from protocol.identity.keys import Key
from protocol.wire.tasks import MEBIBYTE, NetworkMode, RegistryCredentials, Resources
from tests.worker.conftest import Engine
from tests.worker.specs import run_to_end, spec_for, text_of
from worker.runtime.docker import DockerRuntime, engine_socket
from worker.runtime.interface import (
    ContainerStatus,
    ImageMissing,
    LaunchRefused,
    Mount,
    NoSuchContainer,
    PullFailed,
    RuntimeDown,
)

LOOK = """
import json, os
def text(path):
    try: return open(path).read()
    except OSError as error: return error.strerror
def can(path):
    try: open(path, 'w').close()
    except OSError: return False
    return True
status = dict(line.split(':\\t', 1) for line in text('/proc/self/status').splitlines() if ':\\t' in line)
print(json.dumps({
    'capabilities': [status[name].strip() for name in ('CapEff', 'CapPrm', 'CapBnd', 'CapInh')],
    'no_new_privileges': status['NoNewPrivs'].strip(), 'seccomp': status['Seccomp'].strip(),
    'root_writable': can('/written'), 'tmp_writable': can('/tmp/written'), 'data_writable': can('/data/written'),
    'read_only_writable': can('/fixed/written'), 'processes': sum(name.isdigit() for name in os.listdir('/proc')),
    'interfaces': os.listdir('/sys/class/net'), 'environment': os.environ.get('GIVEN'),
    'shm': os.statvfs('/dev/shm').f_frsize * os.statvfs('/dev/shm').f_blocks,
}))
"""


async def test_a_task_is_confined_and_sees_only_its_mounts_and_variables(
    docker_runtime: DockerRuntime, engine: Engine, tmp_path: Path
) -> None:
    for name in ("data", "fixed"):
        (tmp_path / name).mkdir(mode=0o777)
    spec = spec_for(
        docker_runtime._node,
        engine.image,
        ["python3", "-c", LOOK],
        environment={"GIVEN": "value"},
        mounts=(
            Mount(source=tmp_path / "data", target="/data"),
            Mount(source=tmp_path / "fixed", target="/fixed", read_only=True),
        ),
        resources=Resources(memory_bytes=128 * MEBIBYTE, shared_memory_bytes=8 * MEBIBYTE, pids=32, cpus=0.5),
    )
    container, lines = await run_to_end(docker_runtime, spec)
    assert container.exit_code == 0, text_of(lines)
    seen = json.loads(text_of(lines))
    assert set(seen["capabilities"]) == {"0" * 16}
    assert seen["no_new_privileges"] == "1"
    assert seen["seccomp"] == "2"
    assert not seen["root_writable"]
    assert seen["tmp_writable"]
    assert seen["data_writable"]
    assert not seen["read_only_writable"]
    assert seen["processes"] <= 2
    assert seen["interfaces"] == ["lo"]
    assert seen["shm"] == 8 * MEBIBYTE
    assert seen["environment"] == "value"
    assert (tmp_path / "data" / "written").exists()
    host = engine.client.containers.get(spec.name).attrs["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"], host["NanoCpus"]) == (
        128 * MEBIBYTE,
        128 * MEBIBYTE,
        32,
        500_000_000,
    )


async def test_memory_and_processes_are_limited(docker_runtime: DockerRuntime, engine: Engine) -> None:
    hungry = "x = []\nwhile True: x.append(bytearray(1 << 20))"
    small = Resources(memory_bytes=32 * MEBIBYTE, pids=16)
    spec = spec_for(docker_runtime._node, engine.image, ["python3", "-c", hungry], resources=small)
    container, _ = await run_to_end(docker_runtime, spec)
    assert container.exit_code == 137
    assert container.out_of_memory
    await docker_runtime.remove(spec.name)
    forking = (
        "import os, sys, time\n"
        "for count in range(100):\n"
        "    try:\n"
        "        if os.fork() == 0: time.sleep(60)\n"
        "    except OSError: print(count); os._exit(0)\n"
    )
    spec = spec_for(docker_runtime._node, engine.image, ["python3", "-uc", forking], resources=small)
    _, lines = await run_to_end(docker_runtime, spec)
    assert 0 < int(text_of(lines)) < 16


async def test_output_keeps_its_streams_and_can_be_resumed(docker_runtime: DockerRuntime, engine: Engine) -> None:
    talk = "import sys, time\nfor i in range(3): print(i, flush=True); time.sleep(.05); print(-i, file=sys.stderr)"
    spec = spec_for(docker_runtime._node, engine.image, ["python3", "-uc", talk + "\nprint('no end', end='')"])
    _, lines = await run_to_end(docker_runtime, spec)
    assert [line.text for line in lines if line.stream == "stdout"] == ["0", "1", "2", "no end"]
    assert [line.text for line in lines if line.stream == "stderr"] == ["0", "-1", "-2"]
    resumed = [line async for line in docker_runtime.output(spec.name, after_ns=lines[3].time_ns)]
    assert resumed == lines[4:]


async def test_stopping_sends_sigterm_and_kills_after_the_grace_period(
    docker_runtime: DockerRuntime, engine: Engine
) -> None:
    polite = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('up', flush=True)\ntime.sleep(60)"
    )
    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"
    for program, code in ((polite, 7), (deaf, 137)):
        spec = spec_for(docker_runtime._node, engine.image, ["python3", "-c", program])
        await docker_runtime.start(spec)
        async for _ in docker_runtime.output(spec.name, after_ns=0):
            break
        await docker_runtime.stop(spec.name, grace=timedelta(seconds=1))
        (container,) = await docker_runtime.containers()
        assert (container.status, container.exit_code) == (ContainerStatus.EXITED, code)
        await docker_runtime.remove(spec.name)
        await docker_runtime.remove(spec.name)  # a second call has no effect
    await docker_runtime.stop(spec.name, grace=timedelta())


async def test_two_workers_on_one_engine_do_not_see_each_others_containers(
    docker_runtime: DockerRuntime, engine: Engine
) -> None:
    other_node = Key.generate().address
    other = DockerRuntime(other_node, socket=engine.socket)
    theirs = spec_for(other_node, engine.image, ["sleep", "60"])
    ours = spec_for(docker_runtime._node, engine.image, ["sleep", "60"])
    try:
        await other.start(theirs)
        await docker_runtime.start(ours)
        assert [container.name for container in await docker_runtime.containers()] == [ours.name]
        assert [container.name for container in await other.containers()] == [theirs.name]
        for attempt in (
            docker_runtime.stop(theirs.name, grace=timedelta()),
            docker_runtime.remove(theirs.name),
            docker_runtime.start(theirs),
        ):
            with pytest.raises(NoSuchContainer):
                await attempt
        assert engine.client.containers.get(theirs.name).status == "running"
    finally:
        await other.remove(theirs.name)
        await other.close()


async def test_a_gpu_without_a_driver_is_refused_and_leaves_no_container(
    docker_runtime: DockerRuntime, engine: Engine
) -> None:
    if await docker_runtime.gpus_supported():
        pytest.skip("this engine has NVIDIA's runtime")
    spec = spec_for(docker_runtime._node, engine.image, ["true"], gpu_uuids=("GPU-1",), gpu_indices=(0,))
    with pytest.raises(LaunchRefused) as refused:
        await docker_runtime.start(spec)
    assert refused.value.code == "gpu-unavailable"
    assert "toolkit" in refused.value.hint
    assert engine.client.containers.list(all=True, filters={"name": spec.name}) == []


@pytest.mark.parametrize("command", [["no-such-program"], ["/etc"]])
async def test_an_invalid_command_is_refused_and_leaves_no_container(
    docker_runtime: DockerRuntime, engine: Engine, command: list[str]
) -> None:
    with pytest.raises(LaunchRefused):
        await docker_runtime.start(spec_for(docker_runtime._node, engine.image, command))
    assert await docker_runtime.containers() == ()


async def test_host_networking_needs_consent_of_task_and_worker(engine: Engine, docker_runtime: DockerRuntime) -> None:
    spec = spec_for(docker_runtime._node, engine.image, ["true"], network=NetworkMode.HOST)
    with pytest.raises(LaunchRefused) as refused:
        await docker_runtime.start(spec)
    assert refused.value.code == "host-network-refused"
    willing = DockerRuntime(docker_runtime._node, socket=engine.socket, allow_host_network=True)
    await willing.start(spec)
    await willing.close()
    assert engine.client.containers.get(spec.name).attrs["HostConfig"]["NetworkMode"] == "host"


async def test_bridged_tasks_get_a_network_of_their_own_worker(docker_runtime: DockerRuntime, engine: Engine) -> None:
    spec = spec_for(docker_runtime._node, engine.image, ["sleep", "60"], network=NetworkMode.BRIDGE)
    await docker_runtime.start(spec)
    (name,) = engine.client.containers.get(spec.name).attrs["NetworkSettings"]["Networks"]
    assert name.startswith(f"muster-{docker_runtime._node[2:].lower()}")
    options = engine.client.networks.get(name).attrs["Options"]
    assert options["com.docker.network.bridge.enable_icc"] == "false"
    await docker_runtime.remove(spec.name)


class _Registry(BaseHTTPRequestHandler):
    """A registry on loopback that has no image, or that rejects every login."""

    def do_GET(self) -> None:
        status, code = (200, "") if self.path == "/v2/" else (404, "MANIFEST_UNKNOWN")
        if "private" in self.path:
            status, code = 403, "DENIED"
        body = json.dumps({"errors": [{"code": code, "message": code.lower().replace("_", " ")}]}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_missing_image_is_named_in_the_error(docker_runtime: DockerRuntime, registry: str) -> None:
    said: list[str] = []
    with pytest.raises(ImageMissing) as missing:
        await docker_runtime.pull(f"{registry}/nobody/nothing:1", credentials=None, progress=said.append)
    assert f"{registry}/nobody/nothing:1" in missing.value.detail
    with pytest.raises(ImageMissing) as missing:
        await docker_runtime.start(spec_for(docker_runtime._node, f"{registry}/nobody/nothing:1", ["true"]))
    assert await docker_runtime.containers() == ()


async def test_a_registry_that_denies_access_is_distinguished_from_an_unreachable_one(
    docker_runtime: DockerRuntime, registry: str
) -> None:
    login = RegistryCredentials.model_validate({"username": "u", "password": "hunter2"})
    with pytest.raises(ImageMissing) as denied:
        await docker_runtime.pull(f"{registry}/private/x:1", credentials=login, progress=lambda _: None)
    assert "credentials" in denied.value.hint
    assert "hunter2" not in str(denied.value)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(PullFailed, match="b:1 could not be pulled: the registry is unreachable"):
        await docker_runtime.pull(f"127.0.0.1:{port}/a/b:1", credentials=None, progress=lambda _: None)


async def test_an_image_that_exists_locally_is_not_pulled(docker_runtime: DockerRuntime, engine: Engine) -> None:
    said: list[str] = []
    await docker_runtime.pull(engine.image, credentials=None, progress=said.append)
    assert said == []


async def test_an_unreachable_engine_is_distinguished_from_a_bad_task(tmp_path: Path) -> None:
    runtime = DockerRuntime(Key.generate().address, socket=tmp_path / "no.sock")
    for attempt in (runtime.check(), runtime.containers()):
        with pytest.raises(RuntimeDown):
            await attempt
    with pytest.raises(RuntimeDown):
        async for _ in runtime.output(f"muster-{runtime._node[2:].lower()}-x", after_ns=0):
            pass
    await runtime.close()


def test_a_remote_engine_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        engine_socket("tcp://10.0.0.1:2375")
    assert refused.value.code == "docker-not-local"


async def test_a_task_reaches_a_unix_socket_through_a_read_only_mount(
    docker_runtime: DockerRuntime, engine: Engine, tmp_path: Path
) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_unix_server(greet, tmp_path / "s")
    (tmp_path / "s").chmod(0o666)
    connect = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/b/s'); print(s.recv(9).decode())"
    mounts = (Mount(source=tmp_path, target="/b", read_only=True),)
    spec = spec_for(docker_runtime._node, engine.image, ["python3", "-c", connect], mounts=mounts)
    _, lines = await run_to_end(docker_runtime, spec)
    server.close()
    assert text_of(lines) == "hello"
