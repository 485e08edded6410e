"""The worker in a real pool: it joins, runs tasks, survives failures, drains and leaves.

Starting a pool takes seconds, so all tests share one. No test relies on an earlier one: each begins with `at_work`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import redis as sync_redis

from ledger.devchain import start_chain
from protocol.clients import OrchestratorClient
from protocol.errors import MusterError
from protocol.identifiers import digest, run_id
from protocol.wire.assignments import AssignmentState
from protocol.wire.listings import RolloutItem
from protocol.wire.runs import NewCheckpoint
from protocol.wire.tasks import MEBIBYTE, NewTask, Resources, Task, TaskSpec, TaskState
from protocol.wire.uploads import ObjectKey
from tests.kit.chain import quickest_kind
from tests.kit.chain_controls import ChainControls
from tests.worker.conftest import Engine
from tests.worker.pool import POOL, Pool, found_pool, until
from worker.delivery.queue.store import QueueStore
from worker.runtime.docker_arguments import LABEL_WORKER
from worker.situation import Phase, WorkerStatus

TALK = "import time\nprint('first line', flush=True)\nwhile True: time.sleep(.2); print('tick', flush=True)"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory, redis_server: str) -> AsyncIterator[Pool]:
    with sync_redis.from_url(redis_server) as client:
        client.flushall()
    home = tmp_path_factory.mktemp("pool")
    async with start_chain(quickest_kind()) as chain:
        with ExitStack() as stack:
            pool = await found_pool(home, chain, redis_server, stack)
            pool.settings |= {
                "MUSTER_ORCHESTRATOR_RUN": "main",
                "MUSTER_ORCHESTRATOR_RUN_LEASE_S": "60",
                "MUSTER_ORCHESTRATOR_RELAY_EVERY_S": "0.2",
            }
            await pool.start_discovery()
            await pool.start_orchestrator()
            yield pool


@pytest.fixture(scope="module", autouse=True)
def _nothing_runs_on(pool: Pool) -> Iterator[None]:
    yield
    for name in ("node", "node-2"):
        for pid in _keepers(pool, name).values():
            os.kill(pid, signal.SIGKILL)


pytestmark = pytest.mark.asyncio(loop_scope="module")


def task(name: str, program: str, **changes: Any) -> NewTask:
    spec = {
        "name": name,
        "image": "muster/test-python:local",
        "command": ("python3", "-u", "-c", program),
        "resources": Resources(memory_bytes=128 * MEBIBYTE),
        "network": "none",
        "stop_grace_seconds": 1,
        **changes,
    }
    return NewTask(spec=TaskSpec.model_validate(spec), secrets={"TOKEN": "hunter2"})


async def member(pool: Pool, name: str = "node") -> WorkerStatus:
    async def asked() -> WorkerStatus | None:
        found = await pool.status(name)
        return found if found is not None and found.node_state == "healthy" else None

    return await until(asked, what=f"{name} is healthy; {pool.programs[f'worker-{name}'].log.read_text()[-3000:]}")


async def in_state(pool: Pool, *states: AssignmentState, name: str = "node", task_name: str = "") -> WorkerStatus:
    async def asked() -> WorkerStatus | None:
        found = await pool.status(name)
        if found is None or found.assignment is None or (task_name and found.task != task_name):
            return None
        return found if found.assignment.state in states else None

    return await until(asked, what=f"{name} has {states}")


async def at_work(pool: Pool, task_name: str = "", program: str = TALK) -> WorkerStatus:
    """Ensures that the worker is alive, a member, and runs a task.

    Earlier tests may have left any state.

    Args:
        pool: The pool.
        task_name: Name of the required task; any task if empty.
        program: Program of the task, in case the task must be created.
    """
    worker = pool.programs.get("worker-node")
    if worker is None or worker.process.poll() is not None:
        pool.start_worker()
    await member(pool)
    async with pool.owner() as owner:
        wanted = False
        async for each in owner.tasks():
            fits = each.state in {TaskState.PENDING, TaskState.RUNNING} and each.spec.name == (
                task_name or each.spec.name
            )
            wanted = wanted or fits
            if not fits:
                await owner.delete_task(each.id)
        if not wanted:
            await owner.create_task(task(task_name or "talk", program))
    return await in_state(pool, AssignmentState.RUNNING, task_name=task_name)


async def posted(owner: OrchestratorClient, name: str) -> Task:
    (found,) = [each async for each in owner.tasks() if each.spec.name == name]
    return found


async def test_a_new_node_joins_runs_a_task_and_reports_logs_and_metrics(pool: Pool) -> None:
    found = await at_work(pool, "talk")
    assert found.phase is Phase.MEMBER
    assert found.orchestrator == pool.orchestrator_url
    async with pool.ledger("node") as ledger:
        assert await ledger.pools.membership(POOL, pool.keys["node"].address) is not None
    async with pool.owner() as owner:
        talk = await posted(owner, "talk")
        lines = (await asyncio.to_thread(pool.control().logs)).lines

        async def heard() -> bool:
            logs = await owner.logs(pool.keys["node"].address)
            return any(line.text == "first line" for line in logs.lines)

        await until(heard, what="the owner reads the log")
        assert [line.text for line in lines if line.stream == "stdout"][:1] in ([], ["first line"])

        async def measured() -> bool:
            return "cpu.busy" in (await owner.metrics(pool.keys["node"].address)).metrics

        await until(measured, what="metrics arrive")
        assert (await owner.task(talk.id)).state == "running"


async def test_a_worker_killed_with_9_finds_its_task_again_without_restarting_it(pool: Pool) -> None:
    before = await at_work(pool, "talk")
    assert before.assignment is not None
    process_before = _keepers(pool)
    began = await first_lines(pool)
    pool.programs["worker-node"].kill()
    assert await pool.status() is None
    assert _keepers(pool) == process_before
    pool.start_worker()
    await member(pool)
    after = await in_state(pool, AssignmentState.RUNNING)
    assert after.assignment is not None
    assert after.assignment.id == before.assignment.id
    assert after.assignment.restarts == before.assignment.restarts
    assert _keepers(pool) == process_before
    lines = (await asyncio.to_thread(lambda: pool.control().logs(since=0))).lines
    assert [line.sequence for line in lines] == list(range(len(lines)))
    assert await first_lines(pool) == began


ROLLS = """
import http.client, json, os, socket, time
def ask(method, path, body=None):
    line = http.client.HTTPConnection("bridge")
    line.sock = socket.socket(socket.AF_UNIX)
    line.sock.connect(os.environ["MUSTER_BRIDGE_SOCKET"])
    headers = {"Authorization": "Bearer " + os.environ["MUSTER_BRIDGE_TOKEN"], "Content-Type": "application/json"}
    line.request(method, path, None if body is None else json.dumps(body), headers)
    answer = line.getresponse()
    return answer.status, json.loads(answer.read() or "{}")
while True:
    status, step = ask("GET", "/v1/step")
    if status == 200 and step["need"]:
        status, grant = ask("POST", "/v1/slots", {"step": step["step"], "groups": 2})
        if status == 200:
            break
    time.sleep(.2)
open(os.environ["MUSTER_DATA_DIR"] + "/rolls", "w").write(grant["beacon"])
slot = {"step": grant["lease"]["step"], "index": grant["lease"]["index"], "units": 5, "figures": {"reward": 1.0}}
print(ask("POST", "/v1/files", {"path": "rolls", "rollout": slot}), flush=True)
time.sleep(600)
"""


async def test_a_task_leases_a_slot_and_its_file_is_listed_with_a_link(pool: Pool) -> None:
    await at_work(pool, "rolls", ROLLS)
    announced = digest(hashlib.sha256(b"a version").digest())
    async with pool.ledger("publisher") as publisher:
        await publisher.checkpoints.announce(pool_id=POOL, run=run_id("main"), version=0, attempt=0, digest=announced)
    async with pool.owner() as owner, httpx.AsyncClient() as http:
        await owner.put_checkpoint(NewCheckpoint(version=0, digest=announced, units_per_group=10))

        async def listed() -> RolloutItem | None:
            return next(iter([item async for item in owner.rollouts(status="pending")]), None)

        item = await until(listed, what=f"it is on the ledger; {pool.programs['worker-node'].log.read_text()[-2000:]}")
        assert (item.node, item.digest, item.groups, item.units) == (pool.keys["node"].address, announced, 2, 5)
        assert item.figures == {"reward": 1.0}
        assert item.file_url is not None
        content = (await http.get(item.file_url)).content
        assert digest(hashlib.sha256(content).digest()) == item.sha256
        async with pool.ledger("node") as ledger:
            block = await ledger.web3.eth.get_block(item.beacon_block)
            assert content.decode() == "0x" + bytes(block["hash"]).hex()
            assert await ledger.work.get(item.key) is not None
        assert (await owner.leases(item.node)).delivered == 1


async def first_lines(pool: Pool) -> int:
    """Counts the starts of a task by the first line of its output; waits for at least one."""

    async def counted() -> int:
        lines = (await asyncio.to_thread(lambda: pool.control().logs(since=0))).lines
        return [line.text for line in lines if line.stream == "stdout"].count("first line")

    return await until(counted, what="the task has spoken")


async def test_killing_the_orchestrator_with_9_stops_no_task(pool: Pool) -> None:
    await at_work(pool)
    before = _keepers(pool)
    pool.programs["orchestrator"].kill()

    async def silent() -> bool:
        found = await pool.status()
        return found is not None and found.silent_because != ""

    await until(silent, what="the worker notices")
    assert _keepers(pool) == before
    await pool.start_orchestrator()

    async def heard() -> bool:
        found = await pool.status()
        return found is not None and found.silent_because == "" and found.node_state == "healthy"

    await until(heard, what="the worker hears it again")
    assert _keepers(pool) == before

    # It also works at another URL, because the orchestrator deposits an invite with its new URL.
    pool.programs["orchestrator"].kill()
    await until(silent, what="the worker notices")
    item, old_url = refused_file(pool), pool.orchestrator_url
    del pool.ports["orchestrator"]
    await pool.start_orchestrator()
    await until(heard, what="the worker finds it")
    assert (found := await pool.status()) is not None
    assert found.orchestrator == pool.orchestrator_url
    assert f"from {old_url} to {pool.orchestrator_url} at " in found.moved
    assert found.search == ""
    assert _keepers(pool) == before

    async def delivered() -> bool:
        found = await pool.status()
        return found is not None and not found.parked and found.queue["delivered"] >= 1

    await until(delivered, what=f"the file {item} goes to the new URL")

    # A restarted worker still knows the new URL, although discovery is down.
    pool.programs["discovery"].kill()
    pool.programs["worker-node"].kill()
    pool.start_worker()
    await member(pool)
    assert (found := await pool.status()) is not None
    assert (found.orchestrator, found.moved) == (pool.orchestrator_url, "")
    assert _keepers(pool) == before

    # It finds the next URL on the ledger: no invite can arrive.
    former = pool.programs["orchestrator"]
    del pool.ports["orchestrator"]
    await pool.start_orchestrator()
    async with pool.ledger("owner") as owner:
        await owner.pools.set_data_uri(POOL, pool.orchestrator_url)
    former.kill()
    await until(silent, what="the worker notices")
    await until(heard, what="the worker finds it on the ledger")
    assert (found := await pool.status()) is not None
    assert found.orchestrator == pool.orchestrator_url
    assert found.moved.endswith("by its URL on the ledger")
    assert _keepers(pool) == before
    await pool.start_discovery()


def refused_file(pool: Pool) -> str:
    """Adds a file to the worker's queue that the former URL has refused; returns its id."""
    state = pool.state_of("node")
    store = QueueStore(state.queue, state.spool)
    source = pool.home / "result"
    source.write_bytes(b"a result")
    with source.open("rb") as file:
        item, _ = store.add(
            file.fileno(),
            name="result",
            kind="file",
            key="result",
            metadata={},
            now_ms=int(time.time() * 1000),
            most_bytes=100,
            most_spooled=1 << 30,
        )
    store.park(store.get(item), why="the answer was 404 Not Found, without problem details")
    store.close()
    return item


async def test_a_restart_requested_by_the_owner_replaces_the_container(pool: Pool) -> None:
    await at_work(pool)
    before = _keepers(pool)
    async with pool.owner() as owner:
        await owner.restart(pool.keys["node"].address)

    async def replaced() -> bool:
        now = _keepers(pool)
        return bool(now) and now != before

    await until(replaced, what="another container runs")
    await in_state(pool, AssignmentState.RUNNING)


async def test_two_workers_on_one_machine_do_not_affect_each_other(pool: Pool) -> None:
    await at_work(pool)
    first = _keepers(pool)
    pool.start_worker("node-2")
    await member(pool, "node-2")
    await in_state(pool, AssignmentState.RUNNING, name="node-2")
    assert _keepers(pool) == first
    assert _keepers(pool, "node-2")
    assert pool.programs["worker-node-2"].terminate() == 0
    assert _keepers(pool, "node-2") == {}
    assert _keepers(pool) == first
    assert (await member(pool)).node_state == "healthy"


async def test_a_container_keeps_running_when_its_worker_is_killed_with_9(pool: Pool, engine: Engine) -> None:
    """As with the process runtime, but with Docker and the filter of the local network.

    The ids and start times of the container and its network holder must stay the same.
    """
    await at_work(pool)
    settings = {"MUSTER_WORKER_STATE": str(pool.home / "state-docker"), "MUSTER_WORKER_LABELS": '{"docker": "yes"}'}
    pool.states["node-3"] = pool.home / "state-docker"
    node = pool.keys["node-3"].address
    async with pool.owner() as owner:  # a task that keeps running without its bridge
        wish = task("bridged", TALK, network="bridge", priority=1, selector={"labels": {"docker": "yes"}})
        bridged = await owner.create_task(wish)

    def containers(*, stopped: bool = False) -> set[tuple[str, str]]:
        found = engine.client.containers.list(all=stopped, filters={"label": f"{LABEL_WORKER}={node}"})
        return {(str(each.id), str(each.attrs["State"]["StartedAt"])) for each in found}

    async def works() -> None:
        pool.start_worker("node-3", runtime="docker", **settings)
        await member(pool, "node-3")
        await in_state(pool, AssignmentState.RUNNING, name="node-3", task_name="bridged")

    try:
        await works()
        before = containers()
        assert len(before) == 2
        pool.programs["worker-node-3"].kill()
        await works()
        assert containers() == before
    finally:
        async with pool.owner() as owner:
            await owner.delete_task(bridged.id)
    assert pool.programs["worker-node-3"].terminate() == 0
    assert containers(stopped=True) == set()
    assert engine.client.networks.list(filters={"label": f"{LABEL_WORKER}={node}"}) == []


async def test_a_second_worker_in_the_same_state_directory_is_refused(pool: Pool) -> None:
    await at_work(pool)
    other = pool._start("intruder", ["worker", "run"], _environment(pool))
    assert await asyncio.to_thread(other.process.wait, 60) == 1
    assert "another worker uses" in other.log.read_text()


async def test_a_stopped_task_ends_and_a_failed_one_states_the_reason(pool: Pool) -> None:
    await at_work(pool)
    async with pool.owner() as owner:
        async for each in owner.tasks():
            await owner.delete_task(each.id)

        async def idle() -> bool:
            return _keepers(pool) == {}

        await until(idle, what="nothing runs")
        failing = task("failing", "import sys; print('no'); sys.exit(3)", restart={"kind": "never"})
        created = await owner.create_task(failing)
        found = await in_state(pool, AssignmentState.FAILED, task_name="failing")
        assert found.assignment is not None
        assert found.assignment.exit_code == 3

        async def failed() -> bool:
            return (await owner.task(created.id)).state == "failed"

        await until(failed, what="the owner sees the failure")
        await owner.delete_task(created.id)


BRIDGE = (
    "import http.client, json, os, socket\n"
    "class Unix(http.client.HTTPConnection):\n"
    "    def connect(self):\n"
    "        self.sock = socket.socket(socket.AF_UNIX)\n"
    "        self.sock.connect(os.environ['MUSTER_BRIDGE_SOCKET'])\n"
    "def ask(method, path, body=None, token=os.environ['MUSTER_BRIDGE_TOKEN']):\n"
    "    connection = Unix('bridge')\n"
    "    headers = {'Authorization': 'Bearer ' + token, 'Content-Type': 'application/json'}\n"
    "    connection.request(method, path, json.dumps(body) if body is not None else None, headers)\n"
    "    answer = connection.getresponse()\n"
    "    text = answer.read()\n"
    "    return answer.status, json.loads(text) if text else None\n"
    "data = os.environ['MUSTER_DATA_DIR']\n"
    "open(data + '/rollouts.bin', 'wb').write(b'x' * 5000)\n"
    "os.symlink('/etc/passwd', data + '/link')\n"
    "print(json.dumps({\n"
    "    'identity': ask('GET', '/v1/identity'),\n"
    "    'metrics': ask('POST', '/v1/metrics', {'metrics': {'reward': 0.5}}),\n"
    "    'file': ask('POST', '/v1/files', {'path': 'rollouts.bin'}),\n"
    "    'again': ask('POST', '/v1/files', {'path': 'rollouts.bin'}),\n"
    "    'escapes': [ask('POST', '/v1/files', {'path': path})[0] for path in "
    "('../x', '/etc/passwd', 'link', 'gone')],\n"
    "    'stranger': ask('GET', '/v1/identity', token='guess')[0], 'secret': os.environ['TOKEN'],\n"
    "}), flush=True)\n"
    "import time; time.sleep(600)\n"
)


async def test_a_task_calls_its_worker_over_the_bridge(pool: Pool) -> None:
    await at_work(pool, "bridge", BRIDGE)
    async with pool.owner() as owner:
        created = await posted(owner, "bridge")

        async def spoke() -> str | None:
            lines = (await asyncio.to_thread(pool.control().logs)).lines
            return next((line.text for line in lines if line.text.startswith("{")), None)

        said = json.loads(await until(spoke, what="the task has spoken"))
        assert said["identity"][0] == 200
        assert said["identity"][1]["task_id"] == created.id
        assert said["metrics"] == [204, None]
        assert said["file"][0] == 202
        assert said["again"][1] == {**said["file"][1], "new": False}
        assert said["escapes"] == [400, 400, 400, 404]
        assert said["stranger"] == 401
        assert said["secret"] == "hunter2"
        status = await pool.status()
        assert status is not None
        assert status.metrics["task.reward"] == 0.5

        async def delivered() -> bool:
            status = await pool.status()
            return status is not None and status.queue["delivered"] >= 1

        await until(delivered, what="the file is in the pool's store")
        sha256 = digest(hashlib.sha256(b"x" * 5000).digest())
        key = ObjectKey(pool_id=POOL, owner=pool.keys["node"].address, sha256=sha256)
        link = await owner.object_link(key)
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(link.url)).content == b"x" * 5000
        logs = "".join(path.read_text() for path in pool.home.glob("worker-*.log"))
        assert "hunter2" not in logs
        assert len(list(pool.state_of("node").bridges.iterdir())) == 1  # containers of earlier tasks are gone


async def test_a_worker_that_vanishes_is_declared_dead_and_joins_again_by_another_invite(pool: Pool) -> None:
    await at_work(pool)
    node = pool.keys["node"].address
    pool.programs["worker-node"].kill()
    with sync_redis.from_url(pool.redis_url) as redis:
        async with pool.owner() as owner, pool.ledger("node") as ledger:

            async def gone() -> bool:
                # The node's deadlines are shortened, because half a minute of silence is too long for a test.
                redis.zadd(f"muster:{{pool-{POOL}}}:deadlines", {node: 0}, xx=True)
                return await ledger.pools.membership(POOL, node) is None

            await until(gone, what="it has left on the ledger")
            assert "dead" in [entry.after for entry in await owner.history(node)]
            pool.start_worker()
            await member(pool)
            assert await ledger.pools.membership(POOL, node) is not None


async def test_sigterm_hands_over_and_the_next_start_resumes(pool: Pool) -> None:
    before = await at_work(pool)
    assert pool.programs["worker-node"].terminate() == 0
    assert _keepers(pool) == {}
    assert (await at_work(pool)).task == before.task


async def test_draining_is_reported_survives_a_restart_and_can_be_undone(pool: Pool) -> None:
    await at_work(pool)

    async def says(state: str) -> None:
        async def asked() -> bool:
            found = await pool.status()
            return found is not None and found.node_state == state

        await until(asked, what=f"the orchestrator says {state}")

    await asyncio.to_thread(pool.control().drain, on=True)
    await says("draining")
    pool.programs["worker-node"].kill()
    pool.start_worker()
    await says("draining")
    await asyncio.to_thread(pool.control().drain, on=False)
    await says("healthy")


@pytest.mark.parametrize("gas", [True, False], ids=["own gas", "the relayer's gas"])
async def test_leaving_frees_the_stake_and_ends_the_daemon(pool: Pool, gas: bool) -> None:
    await at_work(pool)
    if not gas:
        async with ChainControls(pool.chain.url) as controls:
            await controls.set_balance(pool.keys["node"].address, 0)
    worker = pool.programs["worker-node"]
    await asyncio.to_thread(pool.control().leave)
    assert await asyncio.to_thread(worker.process.wait, 90) == 0
    async with pool.ledger("provider") as ledger:
        assert await ledger.pools.membership(POOL, pool.keys["node"].address) is None
        assert (await ledger.stake.of(ledger.address)).membership_lock == 0
    with pytest.raises(MusterError):
        pool.control().status()
    state = pool.state_of("node")
    assert [*state.tasks.iterdir(), *state.bridges.iterdir()] == []


def _keepers(pool: Pool, name: str = "node") -> dict[str, int]:
    """Returns the running tasks of a worker with the process ids of their keepers."""
    found = {}
    for place in pool.state_of(name).processes.glob("*/keeper.json"):
        keeper = json.loads(place.read_text())
        if Path(f"/proc/{keeper['pid']}").exists() and not (place.parent / "exit.json").exists():
            found[place.parent.name] = keeper["pid"]
    return found


def _environment(pool: Pool) -> dict[str, str]:
    """Returns the environment that the first worker was started with."""
    process = pool.programs["worker-node"].process
    content = Path(f"/proc/{process.pid}/environ").read_bytes().decode()
    pairs = dict(entry.split("=", 1) for entry in content.split("\0") if "=" in entry)
    return {name: value for name, value in pairs.items() if name.startswith(("MUSTER_WORKER_", "MUSTER_NODE_"))}
