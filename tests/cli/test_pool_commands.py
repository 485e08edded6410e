"""`muster pool …` against a real orchestrator with a node that sends heartbeats."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.exit_codes import INTERRUPTED
from orchestrator.app import build_orchestrator
from orchestrator.chain.interface import MemberEvent
from orchestrator.dependencies import build_dependencies
from orchestrator.settings import OrchestratorSettings
from protocol.clients import NodeClient
from protocol.http.tokens import TokenSetting, hash_token, new_token
from protocol.identity.keys import Key
from protocol.identity.scopes import Scope
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock
from protocol.runtime.logs import configure_logs
from protocol.wire.heartbeat import CommandKind, Heartbeat, HeartbeatAnswer
from protocol.wire.logs import LogBatch, LogLine
from tests.kit.command_line import imports_of, run_muster
from tests.kit.http_server import served
from tests.kit.memory_ledger import HARDWARE, POOL, SOFTWARE, MemoryLedger

NEEDLESS = (
    "aiohttp",
    "click",
    "cryptography",
    "eth_account",
    "fastapi",
    "ledger.client",
    "numpy",
    "protocol.wire.runs",
    "protocol.wire.uploads",
    "pygments",
    "redis",
    "rich.console",
    "structlog",
    "torch",
    "web3",
)
"""Modules whose import costs CPU time, and that a request to the orchestrator does not need."""

NODE = Key.generate()
ORCHESTRATOR = Key.generate()
TOKEN, READER = new_token(), new_token()


def speak(url: str, **more: Any) -> HeartbeatAnswer:
    async def once() -> HeartbeatAnswer:
        async with NodeClient(url, key=NODE) as node:
            return await node.heartbeat(Heartbeat(pool_id=POOL, worker_version="0.1.0", **more))

    return asyncio.run(once())


@dataclass
class Owner:
    """An owner with a terminal, and one node of the pool."""

    url: str
    home: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def muster(self, *words: str, fails: int = 0) -> str:
        """Runs `muster pool …`; returns its standard output, or its standard error if it had to fail."""
        status = run_muster(self.monkeypatch, "--config", str(self.home / "muster.toml"), "pool", *words)
        written = self.capsys.readouterr()
        assert status == fails, written.err
        return written.err if fails else written.out

    def asks(self, *words: str) -> Any:
        """Runs a command with `--json`."""
        return json.loads(self.muster(*words, "--json"))

    def beat(self, **more: Any) -> HeartbeatAnswer:
        """Sends a heartbeat of the node."""
        return speak(self.url, **more)

    def until_assigned(self) -> HeartbeatAnswer:
        for _ in range(100):
            answer = self.beat()
            if answer.assignment is not None:
                return answer
            self.rest(0.05)
        pytest.fail("the node was given nothing")

    def report(self, answer: HeartbeatAnswer, state: str, **more: Any) -> HeartbeatAnswer:
        assert answer.assignment is not None
        held = answer.assignment
        return self.beat(assignment={"id": held.id, "generation": held.generation, "state": state, **more})

    def push(self, assignment: str, *texts: str, first: int = 0) -> None:
        lines = tuple(
            LogLine(sequence=first + i, time_ms=1, stream="stdout", text=text) for i, text in enumerate(texts)
        )

        async def once() -> None:
            async with NodeClient(self.url, key=NODE) as node:
                await node.push_logs(LogBatch(assignment_id=assignment, lines=lines))

        asyncio.run(once())

    @staticmethod
    def rest(seconds: float) -> None:
        asyncio.run(asyncio.sleep(seconds))


@pytest.fixture
def owner(
    redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Owner]:
    ledger = MemoryLedger(orchestrator=ORCHESTRATOR.address)
    ledger.register(NODE.address, member=True)
    ledger.happen(NODE.address, MemberEvent.JOINED)
    settings = OrchestratorSettings(
        public_url="http://127.0.0.1:1",
        pool_id=POOL,
        deployment=Path("unused"),
        secrets_key_file=tmp_path / "sealing.key",
        storage_directory=tmp_path / "objects",
        schedule_every_s=0.05,
        tokens=(
            TokenSetting(name="owner", scope=Scope.ADMIN, hash=hash_token(TOKEN)),
            TokenSetting(name="reader", scope=Scope.READ, hash=hash_token(READER)),
        ),
    )

    async def tell_hardware() -> None:
        """Stores the hardware that discovery would have reported about the node."""
        redis = connect_redis(redis_url)
        dependencies = build_dependencies(settings, redis=redis, ledger=ledger, key=ORCHESTRATOR, clock=SystemClock())
        software, hardware = SOFTWARE.model_dump_json(), HARDWARE.model_dump_json()
        labels = json.dumps({"site": "attic"})
        await dependencies.nodes.learn(NODE.address, {"hardware": hardware, "software": software, "labels": labels})
        await redis.aclose()

    configure_logs(level="WARNING")  # as the command does; here the service shares its process
    app = build_orchestrator(settings, redis=connect_redis(redis_url), ledger=ledger, key=ORCHESTRATOR)
    with served(app) as url:
        speak(url)
        asyncio.run(tell_hardware())
        (tmp_path / "token").write_text(TOKEN + "\n")
        (tmp_path / "muster.toml").write_text(
            f'[pool]\nid = {POOL}\norchestrator = "{url}"\ntoken_file = "token"\n[orchestrator]\nport = 1\n'
        )
        capsys.readouterr()
        yield Owner(url, tmp_path, capsys, monkeypatch)


def test_the_last_log_lines_of_a_failed_task_are_listed_with_nodes_and_tasks(owner: Owner) -> None:
    """The lines come from a stranger's machine: markup and control characters are escaped, and events contain no
    line.
    """
    owner.beat()
    task = owner.muster("run", "--image", "busybox:1", "--name", "hello", "--restart", "always", "--", "x").strip()
    given = owner.until_assigned()
    said = "ended with exit code 1\n[red]execvp[/red]: no python\x1b[2J\x9b"
    owner.report(given, "restarting", detail=said, exit_code=1)
    for _ in range(100):
        if "execvp" in owner.muster("tasks"):
            break
        owner.rest(0.05)
    for shown in (
        owner.muster("nodes"),
        owner.muster("tasks"),
        owner.muster("task", task),
        owner.muster("node", NODE.address),
    ):
        assert "[red]execvp[/red]: no python\N{REPLACEMENT CHARACTER}[2J" in shown.replace("\n", "")
        assert not {"\x1b", "\x9b"} & set(shown)
    assert "hello (restarting): ended with exit code 1" in owner.muster("nodes")
    assert not {"\x1b", "\x9b"} & set(owner.muster("nodes", "--json"))
    assert owner.asks("nodes")[0]["assignment"]["detail"] == said
    assert "execvp" not in owner.muster("events")
    owner.report(given, "running")
    assert "execvp" not in owner.muster("nodes")


def test_an_owner_posts_watches_and_stops_a_task(owner: Owner) -> None:
    owner.beat()
    assert [(node["address"], node["state"]) for node in owner.asks("nodes")] == [(NODE.address, "healthy")]
    owner.monkeypatch.setenv("PASSWORD", "hunter2")
    words = ["--image", "busybox:1", "--name", "hello", "--env", "A=1", "--secret", "PASSWORD", "--replicas", "1"]
    task = owner.muster("run", *words, "--memory", "64MiB", "--", "echo", "hi").strip()

    given = owner.until_assigned()
    assert given.assignment is not None
    assert (given.assignment.task_id, given.assignment.spec.command) == (task, ("echo", "hi"))
    assert given.assignment.spec.resources.memory_bytes == 64 << 20
    assert given.assignment.secrets["PASSWORD"].get_secret_value() == "hunter2"

    owner.report(given, "running")
    assert "1 running" in owner.muster("tasks")
    assert owner.asks("nodes", "--task", "hello")[0]["assignment"]["state"] == "running"
    shown = owner.muster("task", task[:6])
    assert "hunter2" not in shown
    assert "PASSWORD" in shown

    owner.monkeypatch.setenv("PASSWORD", "hunter3")
    assert "PASSWORD" in owner.muster("set-secrets", "hello", "--secret", "PASSWORD")
    assert owner.asks("task", "hello")["generation"] == 2
    given = owner.until_assigned()
    assert given.assignment is not None
    assert given.assignment.generation == 2
    owner.report(given, "running")

    owner.muster("logs", NODE.address)
    assert CommandKind.SEND_LOGS in {command.kind for command in owner.beat().commands}
    owner.push(given.assignment.id, "first line", "evil \x1b[2J line")
    assert owner.muster("logs", NODE.address) == "first line\nevil \N{REPLACEMENT CHARACTER}[2J line\n"
    assert "│ first line" in owner.muster("logs", "--task", "hello")
    assert json.loads(owner.muster("logs", "--json").splitlines()[0])["node"] == NODE.address

    owner.report(given, "completed")
    assert "│ first line" in owner.muster("logs", "--task", "hello")  # kept after the container was removed
    listed = owner.asks("assignments", "--task", "hello", "--node", NODE.address)
    assert [(one["id"], one["state"]) for one in listed] == [(given.assignment.id, "completed")]
    assert "hello" in owner.muster("assignments", "--task", task, "--state", "completed")
    assert owner.asks("assignments", "--state", "running") == []
    assert "first line" in owner.muster("logs", "--assignment", given.assignment.id)
    assert "`muster pool assignments`" in owner.muster("logs", "--assignment", "x", fails=1)
    owner.muster("stop", "hello")
    assert owner.asks("task", "hello")["desired_state"] == "stopped"
    kinds = {event["kind"] for event in owner.asks("events")}
    assert "node.healthy" in kinds


def test_tasks_and_events_are_filtered_as_by_the_rest_api(owner: Owner) -> None:
    owner.beat()
    for name, label in (("first", "site=attic"), ("second", "site=cellar")):
        owner.muster("run", "--image", "busybox", "--name", name, "--label", label, "--replicas", "1", "--", "x")
    owner.report(owner.until_assigned(), "running")
    owner.muster("stop", "second")

    def names(*words: str) -> list[str]:
        return [task["spec"]["name"] for task in owner.asks("tasks", *words)]

    assert names("--newest") == ["second", "first"]
    assert names("--state", "running", "--state", "failed") == ["first"]
    assert names("--name", "second") == names("--label", "site=cellar") == ["second"]
    assert names("--since", "1h") == ["first", "second"]
    assert names("--until", "2020-01-02") == names("--since", "2100-01-01T00:00:00+01:00") == []
    assert "is not a time" in owner.muster("tasks", "--since", "yesterday", fails=1)

    every = owner.asks("events")
    kinds = [event["kind"] for event in every]
    of_nodes = owner.asks("events", "--kind", "node.", "--kind", "task.created")
    assert {kind.partition(".")[0] for kind in kinds} > {event["kind"].partition(".")[0] for event in of_nodes}
    assert of_nodes == [event for event in every if event["kind"].startswith(("node.", "task.created"))]
    assert owner.asks("events", "--newest", "--limit", "2") == every[:-3:-1]
    assert owner.asks("events", "--node", NODE.address, "--since", "1h") == [each for each in every if each["node"]]
    task = every[-1]["task_id"]
    assert owner.asks("events", "--task", "second") == [each for each in every if each["task_id"] == task]
    (running,) = owner.asks("assignments", "--state", "running")
    of_one = [each for each in every if each["assignment_id"] == running["id"]]
    assert owner.asks("events", "--assignment", running["id"]) == of_one != []
    assert owner.asks("events", "--before", every[1]["id"], "--until", "2100-01-01") == every[:1]
    assert "there is no kind of event" in owner.muster("events", "--kind", "nodes.", fails=1)
    assert "leave them out" in owner.muster("events", "--follow", "--newest", fails=1)


def test_an_owner_restarts_drains_resumes_bans_and_unbans_a_node(owner: Owner) -> None:
    owner.beat()
    owner.muster("run", "--image", "busybox", "--", "sleep", "1")
    given = owner.until_assigned()
    owner.report(given, "running")
    owner.muster("restart", NODE.address, "--reason", "it hangs")
    again = owner.beat().assignment
    assert again is not None
    assert given.assignment is not None
    assert again.restart_nonce > given.assignment.restart_nonce
    assert "draining" in owner.muster("drain", NODE.address)
    assert CommandKind.DRAIN in {command.kind for command in owner.beat().commands}
    assert "healthy" in owner.muster("resume", NODE.address)
    assert "banned" in owner.muster("ban", NODE.address, "--reason", "a test")
    shown = owner.asks("node", NODE.address)
    assert shown["node"]["state"] == "banned"
    assert shown["history"][0]["cause"] == "a test"
    assert "a test" in owner.muster("node", NODE.address)
    assert "banned" not in owner.muster("unban", NODE.address)
    assert owner.asks("groups") == []


def test_an_owner_stops_starts_and_changes_a_task(owner: Owner) -> None:
    owner.muster("run", "--image", "busybox", "--name", "web")
    assert "stopped" in owner.muster("stop", "web")
    assert owner.asks("tasks", "--running") == []
    owner.muster("start", "web")
    assert "replicas 3, priority 7" in owner.muster("change", "web", "--replicas", "3", "--priority", "7")
    assert owner.asks("task", "web")["spec"]["replicas"] == 3
    owner.muster("stop", "web", "--delete", "--yes")
    assert owner.asks("tasks") == []


def test_an_owner_creates_and_deletes_webhooks(owner: Owner) -> None:
    assert owner.asks("webhooks") == []
    # A public address that is never called: no event begins this way.
    made = owner.asks("add-webhook", "https://1.1.1.1/hook", "--event", "never.")
    assert len(made["secret"]) >= 32
    assert "1.1.1.1/hook" in owner.muster("webhooks")
    assert made["secret"] not in owner.muster("webhooks", "--json")
    rotated = owner.asks("rotate-webhook", made["id"], "--overlap", "60")
    assert rotated["secret"] != made["secret"]
    assert "rotation" in owner.muster("rotate-webhook", made["id"], fails=1)
    owner.muster("delete-webhook", made["id"], "--yes")
    assert owner.asks("webhooks") == []


def test_flags_override_a_task_file(owner: Owner) -> None:
    file = owner.home / "task.toml"
    file.write_text(
        """
        name = "trainer"
        image = "example.org/trainer@sha256:%s"
        command = ["train"]
        replicas = 3
        [environment]
        LEVEL = "1"
        [resources]
        cpus = 2.0
        [secrets]
        KEY = "from the file"
        """
        % ("a" * 64)
    )
    made = owner.asks("run", str(file), "--cpus", "1.5", "--env", "MORE=2", "--label", "site=attic", "--data", "/data")
    spec = made["spec"]
    assert (spec["name"], spec["replicas"], spec["command"]) == ("trainer", 3, ["train"])
    assert spec["environment"] == {"LEVEL": "1", "MORE": "2"}
    assert (spec["resources"]["cpus"], spec["selector"]["labels"]) == (1.5, {"site": "attic"})
    assert spec["volumes"] == [{"target": "/data", "shared": False, "read_only": False}]
    assert made["secret_names"] == ["KEY"]
    as_json = owner.home / "task.json"
    as_json.write_text(json.dumps({"image": "busybox", "command": ["true"]}))
    assert owner.asks("run", str(as_json))["spec"]["name"] == "busybox"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "no task is given"),
        (["run", "nothing.toml"], "there is no file"),
        (["run", "--image", "UPPER CASE"], "image"),
        (["run", "--image", "a", "--memory", "much"], "not a size"),
        (["run", "--image", "a", "--replicas", "-1"], "--replicas"),
        (["run", "--image", "a", "--env", "A"], "NAME=VALUE"),
        (["run", "--image", "a", "--secret", "NOT_SET_HERE"], "NOT_SET_HERE is not set"),
        (["run", "--image", "a", "--env", "A=${MUSTER_NOTHING}"], "MUSTER_NOTHING"),
        (["run", "--image", "a", "--cpus", "-1"], "cpus"),
        (["change", "nothing"], "no change is given"),
        (["set-secrets", "nothing"], "no secret is given"),
        (["add-webhook", "https://127.0.0.1/"], "private network"),
        (["add-webhook", "not a url"], "is not a URL for events"),
        (["stop", "nothing"], "there is no task nothing"),
        (["node", "0x" + "11" * 20], "0x1111"),
        (["restart", "0x" + "11" * 20], "0x1111"),
        (["restart", NODE.address], "runs nothing"),
        (["resume", NODE.address], "not draining"),
        (["ban", NODE.address, "--reason", "x" * 201], "at most 200 characters"),
        (["ban", NODE.address, "--reason", " "], "a ban needs a reason"),
        (["logs", "0x12"], "not an address"),
    ],
)
def test_a_mistake_is_reported_without_a_traceback(owner: Owner, words: list[str], said: str) -> None:
    owner.beat()
    error = owner.muster(*words, fails=1)
    assert said in error.replace("\n", " ")
    assert "Traceback" not in error


def test_a_missing_wrong_or_insufficient_token_is_reported(owner: Owner) -> None:
    owner.beat()
    for token, said in ((READER, "scope"), (new_token(), "not known"), ("nonsense", "not known")):
        owner.monkeypatch.setenv("MUSTER_POOL_TOKEN", token)
        assert said in owner.muster("drain", NODE.address, fails=1)
    (owner.home / "token").unlink()
    owner.monkeypatch.delenv("MUSTER_POOL_TOKEN")
    assert "can't read the token file" in owner.muster("nodes", fails=1)


def test_an_unreachable_orchestrator_ends_with_the_exit_code_for_a_retry(owner: Owner) -> None:
    assert "can't reach" in owner.muster("nodes", "--orchestrator", "http://127.0.0.1:9", fails=75)


def test_a_request_to_the_orchestrator_imports_only_what_it_needs(owner: Owner) -> None:
    owner.beat()
    for command, needless in (("nodes", ("protocol.wire.tasks",)), ("tasks", ()), ("events", ("protocol.wire.tasks",))):
        done = imports_of([*NEEDLESS, *needless], "--config", str(owner.home / "muster.toml"), "pool", command)
        assert (done.found, done.collects) == ([], True), command
        assert command != "nodes" or done.out.splitlines()[1].startswith(NODE.address), done.err


def test_task_output_is_followed_as_it_arrives(owner: Owner) -> None:
    owner.beat()
    owner.muster("run", "--image", "busybox", "--", "sleep", "1")
    given = owner.until_assigned()
    assert given.assignment is not None
    owner.report(given, "running")
    owner.push(given.assignment.id, "one")
    command = [sys.executable, "-m", "cli", "--config", str(owner.home / "muster.toml"), "pool", "logs", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as shown:
        try:
            assert shown.stdout is not None
            while CommandKind.SEND_LOGS not in {command.kind for command in owner.beat().commands}:
                owner.rest(0.05)
            owner.push(given.assignment.id, "two", first=1)
            assert shown.stdout.readline().endswith("│ one\n")
            assert shown.stdout.readline().endswith("│ two\n")
            owner.push(given.assignment.id, "three", first=2)
            assert shown.stdout.readline().endswith("│ three\n")
            shown.send_signal(signal.SIGINT)
            assert shown.wait(60) == INTERRUPTED
        finally:
            shown.kill()
