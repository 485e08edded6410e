"""Tasks in Docker and the local network: what the packet filter denies, and what is left of it."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.exit_codes import FAILED, exit_code_of
from ledger.artifacts import Contract
from ledger.deployment import Deployment
from protocol.errors import InvalidInput
from protocol.http.url_safety import is_public
from protocol.identity.keys import Key
from protocol.runtime.findings import Level
from protocol.wire.assignments import AssignmentState
from protocol.wire.tasks import NetworkMode
from tests.worker.conftest import Engine
from tests.worker.specs import run_to_end, spec_for, text_of
from tests.worker.test_reconciler import TICK, asked, reconciler_of, running, state_is, until
from worker.app import require_filter, run_worker
from worker.doctor.local_network import check_local_network, check_relays, own_addresses
from worker.runtime import docker as docker_module
from worker.runtime.docker import DockerRuntime
from worker.runtime.docker_arguments import LABEL_LOCAL_NETWORK, LABEL_WORKER
from worker.runtime.interface import FilterFailed, LaunchRefused
from worker.runtime.network_filter import DENIED, FilterRules, NetworkFilter, name_servers
from worker.runtime.network_holder import holder_name
from worker.settings import WorkerSettings
from worker.state import StateDirectory
from worker.tasks.reconciler import Reconciler

PRIVATE = tuple(IPv4Network(each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
"""Docker chooses the worker's network from these."""

PROBE = """
import json, os, socket, struct, sys
port, holder, own = int(sys.argv[1]), sys.argv[2], sys.argv[3]
routes = [line.split() for line in open('/proc/net/route').read().splitlines()[1:]]
link, gateway = next((r[0], socket.inet_ntoa(struct.pack('<I', int(r[2], 16)))) for r in routes if r[1] == '0' * 8)
def attempt(work):
    try: return work() or 'ok'
    except OSError as error: return os.strerror(error.errno) if error.errno else str(error)
def connect(address, device=None):
    with socket.socket() as s:
        s.settimeout(5)
        if device: s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        s.connect((address, port))
def send(address, port=9, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        s.sendto(b'x', (address, port))
def flush():  # deletes the table `filter` through nfnetlink
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as s:
        s.bind((0, 0))
        def message(kind, body, flags=5):
            return struct.pack('=IHHII', 16 + len(body), kind, flags, 1, 0) + body
        head, name = struct.pack('=BBH', 2, 0, 0), struct.pack('=HH', 11, 1) + b'filter\\0\\0'
        s.send(message(16, struct.pack('=BBH', 0, 0, 2560), 1) + message(2562, head + name)
               + message(17, struct.pack('=BBH', 0, 0, 2560), 1))
        code = struct.unpack('=i', s.recv(4096)[16:20])[0]
        if code: raise OSError(-code, os.strerror(-code))
print(json.dumps({
    'gateway': attempt(lambda: connect(gateway)),
    'bound to the link': attempt(lambda: connect(gateway, link)),
    'own': attempt(lambda: connect(own)),
    'private': {each: attempt(lambda: send(each)) for each in (
        '10.9.8.7', '192.168.7.6', '169.254.169.254', '100.64.0.9', '224.0.0.251', '255.255.255.255')},
    'public': attempt(lambda: send('8.8.8.8')),
    'ipv6': [attempt(lambda: send(each, family=socket.AF_INET6)) for each in ('fd00::9', 'fe80::1%' + link)],
    'dns': [attempt(lambda: send('10.1.2.3', 53)), attempt(lambda: send('10.1.2.3', 54))],
    'resolver': attempt(lambda: socket.gethostbyname(holder) and None),
    'flush': attempt(flush),
    'raw': attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).close()),
}))
"""
DENIES, REFUSES = "No route to host", "Operation not permitted"


@pytest.fixture
def listener() -> Iterator[int]:
    """Listens on all addresses of this machine; yields the port."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        stopped = threading.Event()

        def accept() -> None:
            while not stopped.is_set():
                server.accept()[0].close()

        thread = threading.Thread(target=accept)
        thread.start()
        port = int(server.getsockname()[1])
        yield port
        stopped.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()


@asynccontextmanager
async def filtering(runtime: DockerRuntime, chosen: NetworkFilter | None) -> AsyncIterator[DockerRuntime]:
    """Yields a runtime of the same worker with another filter, as after a restart with other settings."""
    other = DockerRuntime(runtime._node, socket=runtime._socket, network_filter=chosen)
    yield other
    await other.close()


def left_of(engine: Engine, runtime: DockerRuntime) -> set[str]:
    """Returns the names of all containers of the worker, holders included."""
    labelled = engine.client.api.containers(all=True, filters={"label": f"{LABEL_WORKER}={runtime._node}"})
    return {each["Names"][0].removeprefix("/") for each in labelled}


def own_address() -> str:
    """Returns the address of this machine on the network of its default route."""
    return next(each for each in own_addresses() if ":" not in each)


@given(st.integers(0, 2**32 - 1).map(IPv4Address) | st.sampled_from(DENIED).map(lambda network: network[-1]))
def test_exactly_the_addresses_that_are_not_public_are_denied(address: IPv4Address) -> None:
    assert NetworkFilter().allows(address) is is_public(str(address))


def test_this_machines_public_addresses_are_denied_and_private_name_servers_answer(tmp_path: Path) -> None:
    files = [tmp_path / "resolv.conf", tmp_path / "none"]
    files[0].write_text("# a comment\nnameserver 127.0.0.53\nnameserver 192.168.1.1\nnameserver fd00::1\nnameserver\n")
    own = [IPv4Address("8.8.8.8"), IPv4Address("10.0.0.7")]
    chosen = NetworkFilter(allowed=(IPv4Network("10.0.0.0/24"),))
    rules = chosen.rules(own=own, name_servers=name_servers(files)).ipv4.splitlines()
    assert [rule for rule in rules if rule.endswith("ACCEPT") and "OUTPUT -" in rule] == [
        "-A OUTPUT -o lo -j ACCEPT",
        "-A OUTPUT -d 10.0.0.0/24 -j ACCEPT",
        "-A OUTPUT -p udp -d 192.168.1.1 --dport 53 -j ACCEPT",
        "-A OUTPUT -p tcp -d 192.168.1.1 --dport 53 -j ACCEPT",
    ]
    assert [rule for rule in rules if "8.8.8.8" in rule] == [
        "-A OUTPUT -d 8.8.8.8/32 -j REJECT --reject-with icmp-admin-prohibited"
    ]


async def test_a_task_reaches_the_internet_but_neither_private_networks_nor_this_machine(
    docker_runtime: DockerRuntime, engine: Engine, listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_module, "name_servers", lambda: [IPv4Address("10.1.2.3")])
    node, seen = docker_runtime._node, {}
    for name, chosen in (("allow", None), ("deny", NetworkFilter()), ("except", NetworkFilter(allowed=PRIVATE))):
        async with filtering(docker_runtime, chosen) as runtime:
            spec = spec_for(node, engine.image, [], network=NetworkMode.BRIDGE)
            arguments = [str(listener), holder_name(spec.name), own_address()]
            spec = spec_for(node, engine.image, ["python3", "-c", PROBE, *arguments], network=NetworkMode.BRIDGE)
            _, lines = await run_to_end(runtime, spec)
            seen[name] = json.loads(text_of(lines).splitlines()[-1])
            assert left_of(engine, runtime) == {spec.name}  # the holder ends with the task's last process
            await runtime.remove(spec.name)
    assert {seen["allow"][name] for name in ("gateway", "bound to the link", "own", "public")} == {"ok"}
    assert set(seen["allow"]["private"].values()) == {"ok"}
    denied = seen["deny"]
    assert {denied[name] for name in ("gateway", "bound to the link", "own")} == {DENIES}
    assert set(denied["private"].values()) == {REFUSES}
    assert denied["public"] == denied["resolver"] == "ok"
    assert "ok" not in denied["ipv6"]
    assert denied["dns"] == ["ok", REFUSES]
    assert denied["flush"] == denied["raw"] == REFUSES
    allowed = seen["except"]
    assert allowed["gateway"] == allowed["bound to the link"] == "ok"
    assert (allowed["private"]["10.9.8.7"], allowed["private"]["169.254.169.254"]) == ("ok", REFUSES)


class _Broken(NetworkFilter):
    def rules(self, **_: Any) -> FilterRules:
        return FilterRules(ipv4="no rules", ipv6="")


async def test_without_its_filter_a_task_is_not_started_and_nothing_is_left(
    docker_runtime: DockerRuntime, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filtering(docker_runtime, _Broken()) as runtime:
        spec = spec_for(runtime._node, engine.image, ["sleep", "60"], network=NetworkMode.BRIDGE)
        with pytest.raises(FilterFailed, match="iptables ended with exit code") as failed:
            await runtime.start(spec)
        assert 'local_network = "allow"' in failed.value.hint
        assert not failed.value.retryable
    with monkeypatch.context() as patch:
        patch.setattr("worker.runtime.network_holder._SLEEP", ("/no/such/program",))
        async with filtering(docker_runtime, NetworkFilter()) as runtime:
            with pytest.raises(FilterFailed, match="/no/such/program") as failed:
                await runtime.start(spec)
        assert (failed.value.code, failed.value.retryable) == ("local-network-not-denied", True)
    with monkeypatch.context() as patch:
        patch.setattr("worker.runtime.network_holder._SLEEP", ("/bin/sleep", "0.5"))
        patch.setattr("worker.runtime.network_holder._INSTALL", "/bin/sleep 5")
        async with filtering(docker_runtime, NetworkFilter()) as runtime:  # the holder ends meanwhile
            with pytest.raises(FilterFailed):
                await runtime.start(spec)
        patch.setattr("worker.runtime.network_holder._install", lambda *_: time.sleep(1.5))
        async with filtering(docker_runtime, NetworkFilter()) as runtime:
            with pytest.raises(FilterFailed, match="has ended"):
                await runtime.start(spec)
    async with filtering(docker_runtime, NetworkFilter()) as runtime:  # the task itself can't be started
        invalid = spec_for(runtime._node, engine.image, ["no-such-program"], network=NetworkMode.BRIDGE)
        with pytest.raises(LaunchRefused):
            await runtime.start(invalid)
        assert left_of(engine, runtime) == set()
        await runtime.start(spec)
        engine.client.containers.get(spec.name).remove(force=True)  # as after a kill between two steps
        assert left_of(engine, runtime) == {holder_name(spec.name)}
        assert await runtime.containers() == ()
        assert left_of(engine, runtime) == set()
        await runtime.start(spec_for(runtime._node, engine.image, ["sleep", "60"]))  # network none needs no holder
        assert left_of(engine, runtime) == {spec.name}


async def test_a_worker_without_its_filter_does_not_start_and_leaves_no_unfiltered_container(
    docker_runtime: DockerRuntime, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_for(docker_runtime._node, engine.image, ["sleep", "60"], network=NetworkMode.BRIDGE)
    await docker_runtime.start(spec)
    key = Key.generate()
    monkeypatch.setenv("MUSTER_NODE_KEY", "0x" + key.reveal().hex())
    monkeypatch.chdir(tmp_path)
    Deployment(chain_id=1, block=0, contracts=dict.fromkeys(Contract, key.address)).save(tmp_path / "d.json")
    async with filtering(docker_runtime, _Broken()) as runtime:

        async def choose(*_: object) -> DockerRuntime:
            return runtime

        with pytest.raises(FilterFailed, match=r"the worker does not start: .* iptables") as failed:
            await run_worker(settings_of(tmp_path, state=tmp_path / "state"), choose=choose)
        assert exit_code_of(failed.value) == FAILED
        assert left_of(engine, runtime) == set()
    silent = DockerRuntime(docker_runtime._node, socket=tmp_path / "no.sock", network_filter=NetworkFilter())
    await require_filter(silent)  # the worker waits for an engine that does not answer
    await silent.close()


async def test_a_filter_that_fails_later_leaves_the_task_pending(
    docker_runtime: DockerRuntime, engine: Engine, state: StateDirectory
) -> None:
    async with filtering(docker_runtime, _Broken()) as runtime, running(reconciler_of(runtime, state)) as reconciler:
        reconciler.offer(asked(engine.image, TICK, network="bridge", restart={"kind": "never"}))
        await until(lambda: "iptables" in getattr(reconciler.report(), "detail", ""), "the cause is reported")
        assert state_is(reconciler, AssignmentState.PENDING)()


async def test_an_unfiltered_container_is_stopped_before_the_orchestrator_answers(
    docker_runtime: DockerRuntime, engine: Engine, state: StateDirectory
) -> None:
    async with running(reconciler_of(docker_runtime, state)) as reconciler:
        reconciler.offer(asked(engine.image, TICK, network="bridge"))
        await until(partial(running_as_chosen, engine, reconciler, docker_runtime, None), "it runs unfiltered")
    async with filtering(docker_runtime, NetworkFilter()) as runtime, running(reconciler_of(runtime, state)):
        await until(lambda: not left_of(engine, runtime), "it is stopped without an answer")


async def test_a_container_of_another_program_keeps_its_name_and_its_network(
    docker_runtime: DockerRuntime, engine: Engine
) -> None:
    await docker_runtime.start(
        spec := spec_for(docker_runtime._node, engine.image, ["sleep", "60"], network=NetworkMode.BRIDGE)
    )
    # An image can bring the label; the engine then lists the container as the worker's.
    other = engine.client.containers.create(
        engine.image, "true", name=f"{secrets.token_hex(8)}-network", labels={LABEL_WORKER: docker_runtime._node}
    )
    try:
        assert [container.name for container in await docker_runtime.containers()] == [spec.name]
        other.reload()
        await docker_runtime.remove_network()  # the task's container is still connected
        assert engine.client.networks.list(names=[docker_runtime._network_name])
    finally:
        other.remove()


def running_as_chosen(
    engine: Engine, reconciler: Reconciler, runtime: DockerRuntime, chosen: NetworkFilter | None
) -> str | None:
    """Returns the id of the worker's only container, once it runs and has the network of the chosen filter."""
    names = left_of(engine, runtime)
    tasks = [name for name in names if not name.endswith("-network")]
    if not state_is(reconciler, AssignmentState.RUNNING)() or len(tasks) != 1 or len(names) != 1 + (chosen is not None):
        return None
    container = engine.client.containers.get(tasks[0])
    label = "allow" if chosen is None else chosen.label
    return str(container.id) if container.labels[LABEL_LOCAL_NETWORK] == label else None


async def test_a_restarted_worker_keeps_a_filtered_container_and_replaces_it_when_the_setting_changes(
    docker_runtime: DockerRuntime, engine: Engine, state: StateDirectory
) -> None:
    task = asked(engine.image, TICK, network="bridge")
    identities = []
    for chosen in (None, NetworkFilter(), NetworkFilter(), NetworkFilter(allowed=PRIVATE)):
        async with filtering(docker_runtime, chosen) as runtime, running(reconciler_of(runtime, state)) as reconciler:
            reconciler.offer(task)

            settled = partial(running_as_chosen, engine, reconciler, docker_runtime, chosen)
            identities.append(await until(settled, "one container runs with the network of the settings"))
    assert len(set(identities)) == 3
    assert identities[1] == identities[2]
    async with filtering(docker_runtime, NetworkFilter(allowed=PRIVATE)) as runtime:
        (container,) = await runtime.containers()
        assert container.fingerprint
        engine.client.containers.get(holder_name(container.name)).stop(timeout=0)
        (container,) = await runtime.containers()
        assert container.fingerprint == ""  # without its holder it has no network any more
        await reconciler_of(runtime, state).shut_down()
        assert left_of(engine, runtime) == set()


def settings_of(tmp_path: Path, **values: Any) -> WorkerSettings:
    given = {"pool_id": 1, "discovery": ["https://d.example"], "deployment": tmp_path / "d.json", **values}
    return WorkerSettings.load(flags=given)


@pytest.mark.parametrize(
    ("values", "denies"),
    [
        ({}, True),
        ({"allow_host_network": True}, False),
        ({"allow_plain_http": True}, False),
        ({"allow_plain_http": True, "local_network": "deny", "allow_networks": ["10.0.0.0/8"]}, True),
        ({"local_network": "allow"}, False),
        ({"local_network": "deny", "allow_host_network": True}, "remove one of the two settings"),
        ({"local_network": "allow", "allow_networks": ["10.0.0.0/8"]}, "exceptions to local_network"),
        ({"allow_host_network": True, "allow_networks": ["10.0.0.0/8"]}, "exceptions to local_network"),
        ({"allow_networks": ["10.0.0.5/8"]}, "valid IPv4 network"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], denies: bool | str
) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(denies, str):
        with pytest.raises(InvalidInput, match=denies):
            settings_of(tmp_path, **values)
    else:
        assert settings_of(tmp_path, **values).denies_local_network is denies
        # `muster config show worker` shows what applies, also while a required setting is missing.
        for name in values.keys() - {"allow_networks"}:
            monkeypatch.setenv(f"MUSTER_WORKER_{name.upper()}", str(values[name]))
        shown = {one.key: one.value for one in WorkerSettings.explain()[0]}
        assert shown["local_network"] == ("deny" if denies else "allow")


@pytest.mark.parametrize(
    ("values", "with_docker", "addresses", "level", "named"),
    [
        ({"allow_plain_http": True}, True, ["192.168.1.5", "fd00::5"], Level.WARNING, "192.168.1.5, fd00::5"),
        ({"allow_host_network": True}, False, ["192.168.1.5"], Level.WARNING, "192.168.1.5"),
        ({"local_network": "allow"}, True, ["192.168.1.5"], Level.OK, "192.168.1.5, as local_network allows"),
        ({"local_network": "allow"}, True, ["8.8.8.8", "2606:4700::1", "127.0.0.1"], None, ""),
        ({}, False, ["192.168.1.5"], None, ""),
    ],
)
async def test_the_doctor_says_which_local_networks_tasks_reach(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
    with_docker: bool,
    addresses: list[str],
    level: Level | None,
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = settings_of(tmp_path, **values)
    found = await check_local_network(settings, with_docker=with_docker, addresses=addresses)
    assert (None if found is None else found.level) is level
    assert found is None or found.found.endswith(named)


async def test_the_doctor_tries_the_filter_and_names_relays_that_it_denies(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = {"docker_host": f"unix://{engine.socket}", "allow_networks": ["10.0.0.0/24"]}
    settings = settings_of(tmp_path, **chosen)
    before = {network.name for network in engine.client.networks.list()}
    for started in (0, int(time.time())):  # an interrupted doctor's, and those of one that runs now
        name, labels = f"muster-check-{started}-x", {LABEL_WORKER: "check"}
        engine.client.networks.create(name, labels=labels)
        engine.client.containers.create(engine.image, "true", name=f"{name}-network", labels=labels, network=name)
    found = await check_local_network(settings, with_docker=True, addresses=["192.168.1.5"])
    assert found is not None
    assert (found.level, found.found.partition("except ")[2]) == (Level.OK, "10.0.0.0/24")
    assert {network.name for network in engine.client.networks.list()} - before == {name}
    (left,) = engine.client.containers.list(all=True, filters={"label": f"{LABEL_WORKER}=check"})
    assert left.name == f"{name}-network"
    left.remove()
    engine.client.networks.get(name).remove()
    monkeypatch.setattr("worker.runtime.network_holder._INSTALL", "iptables-of-nobody")
    found = await check_local_network(settings, with_docker=True, addresses=[])
    assert found is not None
    assert (found.level, "iptables-of-nobody" in found.found) == (Level.FAILURE, True)
    relays = ["http://10.0.0.5:8080", "http://10.0.1.5", "http://8.8.8.8", "http://unknown.invalid", "http://[fd00::1]"]
    denied = await check_relays(relays, settings)
    assert denied is not None
    assert (denied.level, denied.found.partition(": ")[2]) == (Level.WARNING, "http://10.0.1.5 (10.0.1.5)")
    assert await check_relays(relays[:1], settings) is None
    assert await check_relays(relays, settings_of(tmp_path, local_network="allow")) is None


def test_the_configuration_command_shows_both_settings(tmp_path: Path) -> None:
    (tmp_path / "muster.toml").write_text(
        '[worker]\npool_id = 1\ndiscovery = ["https://d.example"]\ndeployment = "d.json"\n'
        'local_network = "deny"\nallow_networks = ["10.0.0.5/32"]\n'
    )
    command = [sys.executable, "-m", "cli", "--config", str(tmp_path / "muster.toml"), "config", "show", "worker"]
    said = subprocess.run([*command, "run", "--json"], capture_output=True, check=True, text=True).stdout
    assert {"deny", "10.0.0.5/32"} <= {str(row["value"]) for row in json.loads(said)["settings"]}
