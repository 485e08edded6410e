"""`muster pool progress`, `rollouts`, `deliveries`, `demand` and `publish` against an orchestrator with a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.pool.runs import ROLLOUTS
from orchestrator.app import build_orchestrator
from orchestrator.chain.interface import MemberEvent
from orchestrator.domain.slots import SlotEvent
from orchestrator.settings import OrchestratorSettings
from orchestrator.storage import ObjectStore
from protocol.clients import NodeClient
from protocol.http.tokens import TokenSetting, hash_token, new_token
from protocol.identity.keys import Key
from protocol.identity.scopes import Scope
from protocol.leases import WorkClaim
from protocol.redis.connection import connect_redis
from protocol.runtime.logs import configure_logs
from protocol.verdicts import Outcome
from protocol.wire.heartbeat import Heartbeat
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import ReceiptState
from protocol.wire.slots import SlotRequest
from protocol.wire.validators import NumericsReport
from tests.kit.command_line import run_muster
from tests.kit.http_server import served
from tests.kit.memory_ledger import POOL, MemoryLedger
from tests.kit.memory_run_ledger import RUN, MemoryRunLedger, sha, upload

NODE, ORCHESTRATOR, VALIDATOR = Key.generate(), Key.generate(), Key.generate()
TOKEN = new_token()


@dataclass
class Owner:
    """A user with a terminal, and a node of the pool."""

    url: str
    home: Path
    chain: MemoryRunLedger
    objects: ObjectStore
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def muster(self, *words: str, fails: bool = False) -> str:
        status = run_muster(self.monkeypatch, "--config", str(self.home / "muster.toml"), "pool", *words)
        written = self.capsys.readouterr()
        assert (status != 0) == fails, written.err
        return written.err if fails else written.out

    def asks(self, *words: str) -> Any:
        return json.loads(self.muster(*words, "--json"))

    def deliver(self) -> str:
        """Has the node lease a slot and deliver; returns the work's key once it is on the ledger."""

        async def once() -> str:
            async with NodeClient(self.url, key=NODE) as node:
                await node.heartbeat(Heartbeat(pool_id=POOL, worker_version="0.1.0"))
                grant = await node.slot(SlotRequest(step=0, groups=3, request_id="a" * 32))
                words = WorkClaim(lease_hash=grant.lease.lease.hash, sha256=sha(1), units=7)
                signature = "0x" + words.sign(NODE, grant.lease.domain).hex()
                work = SignedWorkClaim(lease=grant.lease, sha256=sha(1), units=7, signature=signature)
                upload(self.objects, work)
                for _ in range(2000):
                    receipt = await node.submit_work(work, figures={"samples": 12, "reward": 0.25})
                    if receipt.state is ReceiptState.CARRIED:
                        return str(receipt.key)
                    await asyncio.sleep(0.05)
            pytest.fail("it was not carried")

        return asyncio.run(once())

    def until(self, *words: str) -> list[Any]:
        """Waits until a listing is not empty and returns it."""
        for _ in range(1000):
            if found := self.asks(*words):
                return list(found)
            asyncio.run(asyncio.sleep(0.05))
        pytest.fail(f"{words} stayed empty")


@pytest.fixture
def owner(
    redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Owner]:
    ledger, chain = MemoryLedger(orchestrator=ORCHESTRATOR.address), MemoryRunLedger()
    ledger.validators.add(VALIDATOR.address)
    ledger.register(NODE.address, member=True)
    ledger.happen(NODE.address, MemberEvent.JOINED)
    chain.add_member(NODE.address)
    settings = OrchestratorSettings(
        public_url="http://127.0.0.1:1",
        pool_id=POOL,
        deployment=Path("unused"),
        storage_directory=tmp_path / "objects",
        storage_reserve_bytes=0,
        ledger_every_s=0.1,
        relay_every_s=0.05,
        run=RUN,
        node_rate_per_s=100,
        tokens=(TokenSetting(name="owner", scope=Scope.ADMIN, hash=hash_token(TOKEN)),),
    )
    configure_logs(level="WARNING")  # as the command does; here the service shares its process
    app = build_orchestrator(
        settings, redis=connect_redis(redis_url), ledger=ledger, run_ledger=chain, key=ORCHESTRATOR
    )
    with served(app) as url:
        (tmp_path / "token").write_text(TOKEN + "\n")
        (tmp_path / "muster.toml").write_text(
            f'[pool]\nid = {POOL}\norchestrator = "{url}"\ntoken_file = "token"\n[orchestrator]\nport = 1\n'
        )
        capsys.readouterr()
        yield Owner(url, tmp_path, chain, app.state.dependencies.objects, capsys, monkeypatch)


def test_progress_shows_paid_names_and_those_that_no_validator_verifies(owner: Owner) -> None:
    verified, other = "vllm-0.32.0/bfloat16/cpu-avx2", "vllm-0.32.0/bfloat16/cpu-avx512"
    digest, paid = owner.chain.announce(0).digest, ("--arithmetic", verified, "--arithmetic", other)
    owner.muster("publish", "0", digest, "--units-per-group", "100", *paid)

    def shown() -> str:
        return " ".join(owner.muster("progress").split())

    assert f"paid for {verified},{other} no validator verifies async level" in shown()

    async def report() -> None:
        async with NodeClient(owner.url, key=VALIDATOR) as validator:
            await validator.report_numerics(NumericsReport(classes=(verified,)))

    asyncio.run(report())
    assert f"paid for {verified},{other} no validator verifies {other} " in shown()
    assert owner.asks("progress")["checkpoint"]["unverifiable"] == [other]


def test_an_owner_sees_a_run_from_its_first_version_to_a_verdict(owner: Owner) -> None:
    assert "no version of the policy" in owner.muster("progress")
    assert owner.muster("rollouts").splitlines() == ["\t".join(ROLLOUTS.names)]
    announced = owner.chain.announce(0)
    said = owner.muster("publish", "0", announced.digest, "--units-per-group", "100")
    assert "slots are leased for version 0 now" in said
    assert "what its recipe names" in owner.muster("progress"), "nobody has said what it is paid for"
    assert "step 0 needs 3 groups, 3 missing" in owner.muster("demand", "0", "3")

    key = owner.deliver()
    [item] = owner.until("rollouts", "--status", "pending")
    assert (item["key"], item["node"], item["figures"]) == (key, NODE.address, {"reward": 0.25, "samples": 12.0})
    shown = owner.muster("rollouts", "--step", "0")
    assert all(word in shown for word in (key[:12], NODE.address, "12", "0.250", "submitted"))

    assert key[:12] in owner.muster("rollouts", "--newest", "--node", NODE.address)
    assert not owner.asks("rollouts", "--node", "0x" + "11" * 20)
    owner.chain.happen(key, NODE.address, SlotEvent.JUDGED, Outcome.FORGED)  # type: ignore[arg-type]  # a digest's text
    owner.until("rollouts", "--status", "rejected")
    assert "forged (provisional): passed" in owner.muster("rollouts")
    [step] = [step for step in owner.asks("progress")["steps"] if step["step"] == 0]
    assert (step["rejected"], step["need"]) == (3, 3)

    told = owner.muster("deliveries", NODE.address)
    assert "1 of its newest 1 leases" in told
    assert "rejected" in told
    assert "step 0 is closed with 0 accepted groups" in owner.muster("demand", "0", "--close")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["publish", "0", sha(5), "--units-per-group", "1"], "is not announced"),
        (["publish", "0", "0x12", "--units-per-group", "1"], "is not a 32-byte digest"),
        (["demand", "0", "9999999999"], "groups"),
        (["deliveries", "0xnobody"], "nobody"),
    ],
)
def test_a_mistake_is_reported_without_a_traceback(owner: Owner, words: list[str], says: str) -> None:
    owner.muster("progress")
    error = owner.muster(*words, fails=True)
    assert says in error
    assert "Traceback" not in error


def test_an_owner_finds_the_page_and_its_token_is_printed_only_on_request(owner: Owner) -> None:
    said = owner.muster("page")
    assert all(part in said for part in (f"{owner.url}/page/", f"in the file {owner.home / 'token'}"))
    assert TOKEN not in said
    assert owner.asks("page") == {"page": f"{owner.url}/page/", "token": f"in the file {owner.home / 'token'}"}
    assert owner.asks("page", "--show-token")["token_itself"] == TOKEN
    owner.monkeypatch.setenv("MUSTER_POOL_TOKEN", TOKEN)
    assert owner.asks("page")["token"] == "in the variable MUSTER_POOL_TOKEN"
    assert httpx.get(owner.asks("page")["page"]).headers["content-type"].startswith("text/html")


def test_without_a_local_token_pool_page_explains_how_to_get_one(owner: Owner) -> None:
    (owner.home / "muster.toml").write_text('[pool]\norchestrator = "https://pool.example/#0x' + "1" * 40 + '"\n')
    assert owner.asks("page") == {"page": "https://pool.example/page/", "token": None}
    assert "no token" in owner.muster("page", "--show-token", fails=True)
