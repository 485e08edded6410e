"""`muster worker init` against a real chain, orchestrator and discovery service."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import pty
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from cli.keys import _LIGHT_SCRYPT_N
from cli.worker import init as command
from cli.worker import setup_plan
from cli.worker.daemon import UNIT
from cli.worker.setup_files import unit_text, write_unit
from cli.worker.setup_plan import APPROVE_GAS, REGISTER_GAS, STAKE_GAS
from discovery.app import build_discovery
from ledger.amounts import UNIT as MUST
from ledger.artifacts import Contract, artifact
from ledger.client.pools import Role
from ledger.deployment import DeploymentDiffers, check_code
from ledger.transactions.pending import TransactionCall
from ledger.transactions.receipts import Receipt
from orchestrator.app import build_orchestrator
from orchestrator.chain.pool import LedgerPool
from orchestrator.settings import OrchestratorSettings
from protocol.errors import Conflict
from protocol.identifiers import Address, address
from protocol.identity.keys import Key
from protocol.identity.keystores import read_keystore, write_keystore
from protocol.identity.typed_data import SigningDomain
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock
from protocol.runtime.findings import DoctorFinding, failure
from protocol.verdicts import Outcome
from tests.kit.chain import development_chain, development_process
from tests.kit.command_line import run_muster
from tests.kit.discovery import SmallLedger
from tests.kit.discovery import settings as discovery_settings
from tests.kit.http_server import served
from tests.kit.verdicts import verdict_on
from tests.kit.world import POOL, TERMS, World, founded, world
from worker.chain import earnings
from worker.settings import LocalNetwork, WorkerSettings

__all__ = ["development_chain", "development_process", "founded", "world"]  # fixtures

NEW = ("--yes", "--no-systemd")


@dataclass
class Contributor:
    """A contributor with an empty home, and the pool's services."""

    world: World
    home: Path
    url: str
    discovery: str
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    @property
    def folder(self) -> Path:
        return self.home / ".config" / "muster"

    @property
    def stake_manager(self) -> str:
        return self.world.deployment[Contract.STAKE_MANAGER]

    async def init(self, *words: str, expect: int = 0, rpc: str | None = None, names_ledger: bool = True) -> str:
        """Runs the command; returns what it printed, with single spaces."""
        if names_ledger and "--yes" in words:
            words = (*words, "--ledger", self.stake_manager)
        self.monkeypatch.setenv("MUSTER_RPC", rpc or self.world.url)
        self.capsys.readouterr()
        arguments = words if words and not words[0].startswith("-") else (self.url, *words)
        status = await asyncio.to_thread(run_muster, self.monkeypatch, "worker", "init", *arguments)
        written = self.capsys.readouterr()
        said = " ".join((written.out + written.err).split())
        assert status == expect, said
        return said

    def light_keys(self) -> dict[str, Key]:
        """Makes both keys with a quick key derivation, as `muster keys new --light` does."""
        keys = {name: Key.generate() for name in ("provider", "node")}
        (self.folder / "keys").mkdir(parents=True)
        (self.folder / "password").write_text("secret\n")
        (self.folder / "password").chmod(0o600)
        for name, key in keys.items():
            write_keystore(self.folder / "keys" / f"{name}.json", key, "secret", scrypt_n=_LIGHT_SCRYPT_N)
        return keys

    async def give(self, who: Key, *, must: int, coin: int = MUST) -> None:
        await (await self.world.as_("governor")).token.mint(who.address, must)
        await self.world.controls.set_balance(who.address, coin)

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.home)): path.read_bytes() for path in self.home.rglob("*") if path.is_file()}


@pytest.fixture
def contributor(
    world: World,
    redis_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Contributor]:
    domain = SigningDomain(world.deployment.chain_id, world.deployment[Contract.COMPUTE_POOLS])
    services = tmp_path / "services"
    services.mkdir()
    directory = build_discovery(
        discovery_settings(), key=Key.generate(), pools=domain, redis=connect_redis(redis_url), ledger=SmallLedger()
    )
    listener = uvicorn.Config("", port=0, log_config=None).bind_socket()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with served(directory) as discovery:
        key, redis = world.keys["orchestrator"], connect_redis(redis_url)
        ledger = LedgerPool(
            world.url,
            world.deployment,
            pool_id=POOL,
            key=key,
            manager=None,
            redis=redis,
            confirmations=0,
            clock=SystemClock(),
        )
        settings = OrchestratorSettings(
            public_url=url,
            pool_id=POOL,
            deployment=Path("unused"),
            storage_directory=services / "objects",
            discovery=(discovery,),
        )
        app = build_orchestrator(settings, redis=redis, ledger=ledger, key=key, with_loops=False)
        with served(app, listener=listener):
            home = tmp_path / "home"
            home.mkdir()
            monkeypatch.setenv("HOME", str(home))
            monkeypatch.chdir(home)
            monkeypatch.setenv("COLUMNS", "300")
            for name in ("MUSTER_CONFIG", "XDG_DATA_HOME"):
                monkeypatch.delenv(name, raising=False)
            yield Contributor(world, home, url, discovery, capsys, monkeypatch)


async def test_a_fresh_machine_is_set_up_in_two_runs_that_each_tell_the_next_step(contributor: Contributor) -> None:
    said = await contributor.init("--dry-run")
    assert "1. make the key" in said
    assert "stake 20 MUST" in said
    assert "no history: the ledger has no paid work of this pool in the last 7 days" in said
    assert contributor.files() == {}

    quick = functools.partial(write_keystore, scrypt_n=_LIGHT_SCRYPT_N)
    contributor.monkeypatch.setattr(command, "write_keystore", quick)
    said = await contributor.init(*NEW, expect=1)  # makes keys and files, and asks for money
    address = re.search(r"made the key provider: (0x\w{40})", said)
    assert address is not None
    assert f"the provider {address[1]} lacks 20 MUST and 0." in said
    assert "the code of all contracts is that of this release" in said
    for place in (Contract.MUSTER, Contract.STAKE_MANAGER):
        assert contributor.world.deployment[place] in said
    assert f"governor {contributor.world.keys['governor'].address}" in said
    assert "unbonding period P7D" in said
    before = contributor.files()
    names = {".config/muster/" + name for name in ("muster.toml", "deployment.json", "password")}
    assert before.keys() == names | {f".config/muster/keys/{name}.json" for name in ("provider", "node")}
    for name in before:
        assert stat.S_IMODE((contributor.home / name).stat().st_mode) == 0o600
    assert not any(re.fullmatch(rb"[0-9a-f]{64}", content.strip()) for content in before.values())
    assert WorkerSettings.load(file=contributor.folder / "muster.toml").local_network is LocalNetwork.DENY

    await contributor.world.controls.set_balance(json_address(contributor, "provider"), MUST)
    governor = await contributor.world.as_("governor")
    await governor.token.mint(json_address(contributor, "provider"), 20 * MUST)
    gas: dict[str, int] = {}
    tell = command._tell

    def measured(done: str, receipt: Receipt) -> None:
        gas[done.partition(" ")[0]] = receipt.gas_used
        tell(done, receipt)

    contributor.monkeypatch.setattr(command, "_tell", measured)
    said = await contributor.init("--yes", "--systemd")
    assert "staked 20 MUST: transaction 0x" in said
    assert "registered the node with capacity 1: transaction 0x" in said
    assert f"ok pool pool {POOL} accepts nodes" in said  # the doctor's words
    assert "next: muster worker run" in said
    estimates = {"allowed": APPROVE_GAS, "staked": STAKE_GAS, "registered": REGISTER_GAS}
    for name, most in estimates.items():
        assert most / 2 < gas[name] < most, gas
    after = contributor.files()
    assert {name: after[name] for name in before} == before
    assert after[str(UNIT)].decode() == unit_text(contributor.folder / "muster.toml")

    gas.clear()
    said = await contributor.init("--yes", "--systemd")  # a third run changes nothing
    assert gas == {}
    assert contributor.files() == after
    provider = json_address(contributor, "provider")
    assert (await governor.stake.of(provider)).active == 20 * MUST
    entry = await governor.registry.node(json_address(contributor, "node"))
    assert entry is not None
    assert (entry.provider, entry.capacity) == (provider, 1)

    async def failing(_: object) -> list[DoctorFinding]:
        return [failure("docker", "no engine answers", "start it")]

    contributor.monkeypatch.setattr(command, "examine", failing)
    said = await contributor.init("--yes", expect=1)
    assert "correct what is marked FAILURE" in said
    assert "next:" not in said


def json_address(contributor: Contributor, name: str) -> Address:
    return address("0x" + json.loads((contributor.folder / "keys" / f"{name}.json").read_text())["address"])


async def test_a_run_continues_after_one_that_stopped_between_its_transactions(contributor: Contributor) -> None:
    keys = contributor.light_keys()
    contributor.monkeypatch.setenv("MUSTER_PROVIDER_KEY", keys["provider"].reveal().hex())
    await contributor.give(keys["provider"], must=50 * MUST)
    cut = pytest.MonkeyPatch()

    async def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    cut.setattr(command, "register_node", stop)
    await contributor.init(*NEW, "--stake", "30", expect=130)
    cut.undo()
    said = await contributor.init(*NEW, "--stake", "30", "--capacity", "3")
    assert "staked" not in said
    assert "registered the node with capacity 3" in said
    said = await contributor.init(*NEW, "--stake", "45", "--capacity", "3")  # more stake is added on request
    assert "staked 15 MUST" in said


async def test_at_a_terminal_it_asks_for_what_is_missing_and_before_each_step(contributor: Contributor) -> None:
    provider = Key.generate()
    await contributor.give(provider, must=50 * MUST)
    contributor.monkeypatch.setenv("MUSTER_PROVIDER_KEY", provider.reveal().hex())
    contributor.monkeypatch.setenv("MUSTER_RPC", contributor.world.url)
    contributor.monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    dialogue = [
        ("number on the ledger", contributor.url),
        ("Make keys and write the configuration", "y"),
        ("Password of the keys", "a long password"),
        ("Again:", "a long password"),
        ("Stake 20 MUST?", "y"),
        ("Register the node", "n"),
    ]
    said, code = await asyncio.to_thread(converse, dialogue)
    assert code == 1, said
    assert "Aborted" in said
    assert "a long password" not in said
    warned, staked = said.index(f"only the pool says that {contributor.stake_manager}"), said.index("Stake 20 MUST?")
    assert warned < staked
    assert "takes the unbonding period, 7 days" in said
    assert not (contributor.folder / "password").exists()
    assert "password_file" not in (contributor.folder / "muster.toml").read_text()
    ledger = await contributor.world.as_("owner")
    assert (await ledger.stake.of(provider.address)).active == 20 * MUST
    assert await ledger.registry.node(json_address(contributor, "node")) is None
    read_keystore(contributor.folder / "keys" / "node.json", "a long password")


def converse(dialogue: list[tuple[str, str]]) -> tuple[str, int]:
    """Runs the command at a terminal; answers each question of the dialogue when it appears."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "cli", "worker", "init"]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    said = ""

    def listen() -> bool:
        nonlocal said
        try:
            said += os.read(ours, 4096).decode(errors="replace")
        except OSError:  # the command has ended
            return False
        return True

    for question, answer in dialogue:
        while question not in said.rpartition("\0")[2]:
            if not listen():
                return said, process.wait(timeout=10)
        said += "\0"  # questions before this point are answered
        os.write(ours, answer.encode() + b"\n")
    while listen():
        pass
    os.close(ours)
    return said, process.wait(timeout=10)


async def test_earnings_are_those_of_the_ledger_with_their_source(contributor: Contributor) -> None:
    world = contributor.world
    await world.member()
    validator = await world.as_("validator")
    outcomes = (Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.REJECTED)
    works = [await world.submitted(index=index) for index in range(3)]
    verdicts = [await verdict_on(validator, work, each) for work, each in zip(works, outcomes, strict=True)]
    assert await validator.work.judge(verdicts) == []
    await world.warp(TERMS.challenge_period + timedelta(minutes=1))
    await validator.work.finalize(works)
    await world.warp(timedelta(days=2))
    await world.controls.mine(1)
    contributor.monkeypatch.setattr(earnings, "CHUNK", 2)  # several queries
    said = await contributor.init("--dry-run")
    # 200 units at 0.01 MUST in two days
    assert re.search(r"on average (0\.99\d*|1) MUST per node and day", said), said
    assert "2 MUST for 3 final works, divided by 1 paid nodes and 2.0 days. Source: events WorkFinal" in said
    await world.warp(timedelta(days=6))  # the works are older than a week now
    await world.controls.mine(1)
    assert "no history: the ledger has no paid work" in await contributor.init("--dry-run")


async def end_pool(world: World) -> None:
    await (await world.as_("owner")).pools.end(POOL)


async def replace_orchestrator(world: World) -> None:
    owner = await world.as_("owner")
    await owner.pools.set_role(POOL, Role.ORCHESTRATOR, Key.generate().address, previous_until=await owner.now())


@pytest.mark.parametrize(
    ("arguments", "words", "expect"),
    [
        (("DISCOVERY",), "is a service of kind discovery, not a pool's orchestrator", 1),
        (("http://127.0.0.1:9",), "ask the pool's owner for the pool's URL", 75),
        (("CHAIN",), "is not a pool's URL", 1),
        (("http://pool.example",), "plain http to pool.example", 1),
        (("1",), "needs the deployment file", 1),
        (("9", "--deployment", "d.json"), "there is no pool 9", 1),
        (("1", "--deployment", "d.json"), "the ledger has no URL of pool 1", 1),
        (("1", "--deployment", "other-chain.json"), "is chain 31337, not chain 5", 1),
        (("POOL", "--discovery", "CHAIN"), "is not a discovery service", 1),
        (("POOL", "--discovery", "POOL"), "is a service of kind orchestrator for contract", 1),
        (("POOL", "--stake", "9"), "joining with capacity 1 locks 10 MUST", 1),
        (("POOL", "--password-file", "nowhere"), "there is no password file", 1),
        (("--yes",), "pool is missing", 1),
    ],
)
async def test_each_mistake_is_named_and_nothing_is_written(
    contributor: Contributor, arguments: tuple[str, ...], words: str, expect: int
) -> None:
    deployment = contributor.world.deployment
    deployment.save(contributor.home / "d.json")
    replace(deployment, chain_id=5).save(contributor.home / "other-chain.json")
    places = {"DISCOVERY": contributor.discovery, "CHAIN": contributor.world.url, "POOL": contributor.url}
    if arguments[0].startswith("-"):
        contributor.url = "--yes"
    said = await contributor.init(*(places.get(each, each) for each in arguments), *NEW, expect=expect)
    assert words in said
    assert contributor.files().keys() == {"d.json", "other-chain.json"}


@pytest.mark.parametrize(
    ("change", "words"),
    [(end_pool, "pool 1 has ended"), (replace_orchestrator, "is not the orchestrator's key of pool 1")],
)
async def test_a_pool_that_ended_or_an_impostor_is_refused(
    contributor: Contributor, change: Callable[[World], Awaitable[None]], words: str
) -> None:
    await change(contributor.world)
    assert words in await contributor.init(*NEW, expect=1)
    assert "give --yes" in await contributor.init(expect=2)
    assert contributor.files() == {}


@pytest.mark.parametrize("case", ["registered", "banned", "same key", "other pool", "foreign file", "foreign unit"])
async def test_existing_things_of_others_are_refused_and_kept(contributor: Contributor, case: str) -> None:
    keys, world = contributor.light_keys(), contributor.world
    await contributor.give(keys["provider"], must=50 * MUST)
    expected, extra = "", NEW
    match case:
        case "registered":
            world.keys["mine"] = keys["node"]
            await world.register("mine")
            expected = f"is registered by another provider, {world.keys['provider'].address}"
        case "banned":
            manager = await world.as_("manager")
            await manager.pools.ban_provider(POOL, keys["provider"].address, "spam")
            expected = "has banned the provider"
        case "same key":
            contributor.monkeypatch.setenv("MUSTER_NODE_KEY", keys["provider"].reveal().hex())
            expected = "provider and node have the same key"
        case "other pool":
            (contributor.folder / "muster.toml").write_text(
                '[worker]\npool_id = 2\ndiscovery = ["https://d"]\ndeployment = "d"\n'
            )
            expected = "is for pool 2, not 1"
        case "foreign file":
            (contributor.folder / "deployment.json").write_text("{}")
            expected = "deployment.json"
        case "foreign unit":
            (contributor.home / UNIT).parent.mkdir(parents=True)
            (contributor.home / UNIT).write_text("[Unit]\n")
            extra, expected = ("--yes", "--systemd"), "exists with another content: no ExecStart"
    before = contributor.files()
    assert expected in await contributor.init(*extra, expect=1)
    after = contributor.files()
    assert {name: after[name] for name in before} == before


async def test_a_number_on_the_ledger_is_enough_with_a_deployment_if_the_owner_published_the_url(
    contributor: Contributor,
) -> None:
    contributor.world.deployment.save(contributor.home.parent / "d.json")
    (contributor.home / "muster.toml").write_text(
        f'[chain]\nrpc = "{contributor.world.url}"\ndeployment = "{contributor.home.parent}/d.json"\n'
    )
    contributor.monkeypatch.setenv("MUSTER_OWNER_KEY", contributor.world.keys["owner"].reveal().hex())

    async def publish(pool: int) -> int:
        words = ("pool", "url", contributor.url, "--pool", str(pool))
        return await asyncio.to_thread(run_muster, contributor.monkeypatch, *words)

    assert await publish(POOL + 1) == 1
    assert "not by the orchestrator of pool 2" in " ".join(contributor.capsys.readouterr().err.split())
    assert await publish(POOL) == 0
    said = await contributor.init(str(POOL), "--deployment", str(contributor.home.parent / "d.json"), "--dry-run")
    assert f"url {contributor.url}" in said

    # The list shows the URL, and on request what the pool's orchestrator names.
    for options, discovery in (((), None), (("--ask",), [contributor.discovery])):
        contributor.capsys.readouterr()
        await asyncio.to_thread(run_muster, contributor.monkeypatch, "pool", "list", "--json", *options)
        (row,) = json.loads(contributor.capsys.readouterr().out)
        assert (row["url"], row["discovery"]) == (contributor.url, discovery)
    await replace_orchestrator(contributor.world)
    await asyncio.to_thread(run_muster, contributor.monkeypatch, "pool", "list", "--json", "--ask")
    written = contributor.capsys.readouterr()
    assert json.loads(written.out)[0]["discovery"] is None
    assert "is not served by the pool's orchestrator" in " ".join(written.err.split())


@pytest.mark.parametrize(
    ("addresses", "allowed"),
    [
        (["10.0.0.5", "fd00::5"], ["10.0.0.5/32"]),
        (["10.0.0.5", "8.8.8.8"], []),
        (["127.0.0.1", "169.254.169.254", "0.0.0.0"], []),
    ],
)
async def test_plain_http_opens_only_the_pools_private_addresses_to_tasks(
    contributor: Contributor, addresses: list[str], allowed: list[str]
) -> None:
    async def resolved(host: str, port: int) -> list[str]:
        return addresses

    contributor.monkeypatch.setattr(setup_plan, "addresses_of", resolved)
    contributor.monkeypatch.setattr(
        command, "write_keystore", functools.partial(write_keystore, scrypt_n=_LIGHT_SCRYPT_N)
    )
    named = (
        f"tasks in Docker reach {allowed[0]} and nothing else in it" if allowed else "tasks in Docker don't reach it"
    )
    assert named in await contributor.init(*NEW, "--allow-plain-http", "--dry-run")
    await contributor.init(*NEW, "--allow-plain-http", expect=1)
    settings = WorkerSettings.load(file=contributor.folder / "muster.toml")
    assert (settings.local_network, settings.allow_plain_http) == (LocalNetwork.DENY, True)
    assert [str(each) for each in settings.allow_networks] == allowed
    assert "muster.toml says, which is kept" in await contributor.init(*NEW, "--dry-run")


async def test_contracts_with_other_code_are_refused(world: World) -> None:
    ledger = await world.as_("owner")
    await check_code(ledger.web3, world.deployment)
    swapped = dict(world.deployment.contracts)
    first, second = Contract.CHECKPOINTS, Contract.AUDIT_SECRETS
    swapped[first], swapped[second] = swapped[second], swapped[first]
    with pytest.raises(DeploymentDiffers, match="the code of Checkpoints"):
        await check_code(ledger.web3, replace(world.deployment, contracts=swapped))
    # The code of this release, but with other values of its immutables.
    offsets = artifact(Contract.STAKE_MANAGER).immutables
    pools = bytes.fromhex(world.deployment[Contract.COMPUTE_POOLS][2:]).rjust(32, b"\0")
    genuine = bytes(await ledger.web3.eth.get_code(world.deployment[Contract.STAKE_MANAGER]))
    cases = [
        (offsets["workLedger"][-1:], pools, "workLedger differs"),  # slashes by another contract of the deployment
        (offsets["token"], bytes(12) + b"\x11" * 20, "token differs"),
        (offsets["unbondingPeriod"], (2**64 - 1).to_bytes(32, "big"), "at most 7,776,000 s"),
        (offsets["unbondingPeriod"][:1], (1).to_bytes(32, "big"), "StakeManager"),
    ]
    for places, value, words in cases:
        code = bytearray(genuine)
        for place in places:
            code[place : place + 32] = value
        # PUSH2 size, PUSH1 12, PUSH0, CODECOPY, PUSH2 size, PUSH0, RETURN
        size = len(code).to_bytes(2, "big")
        creation = b"\x61" + size + b"\x60\x0c\x5f\x39\x61" + size + b"\x5f\xf3" + code
        assert ledger._sender is not None
        sent = await ledger._sender.send(TransactionCall(to=None, data=creation), deadline=timedelta(seconds=30))
        assert sent.created is not None
        contracts = dict(world.deployment.contracts) | {Contract.STAKE_MANAGER: sent.created}
        with pytest.raises(DeploymentDiffers, match=words):
            await check_code(ledger.web3, replace(world.deployment, contracts=contracts))


async def test_a_ledger_that_only_the_pool_names_gets_no_stake_without_a_question(contributor: Contributor) -> None:
    said = await contributor.init(*NEW, expect=1, names_ledger=False)
    assert f"only the pool says that its ledger has the StakeManager {contributor.stake_manager}" in said
    other = contributor.world.deployment[Contract.CHECKPOINTS]
    said = await contributor.init(*NEW, "--ledger", other, expect=1, names_ledger=False)
    assert f"its StakeManager is {contributor.stake_manager}, not {other}" in said
    # Contracts of this release whose penalties another account than the token's governor directs.
    governor, owner = await contributor.world.as_("governor"), await contributor.world.as_("owner")
    await governor.token._contract.send("transferOwnership", contributor.world.keys["owner"].address)
    await owner.token._contract.send("acceptOwnership")
    assert "which name the receivers of penalties, by" in await contributor.init(*NEW, expect=1)
    assert contributor.files() == {}
    assert "code of the contracts not checked" in await contributor.init("--dry-run", "--unverified-contracts")


async def test_a_strangers_text_is_one_short_line(contributor: Contributor) -> None:
    text = "no\nwarning: send your keys to https://thief.example\n" + "x" * 1500
    stranger = FastAPI()
    stranger.state.stopping = threading.Event()

    @stranger.get("/{path:path}")
    async def refuse(path: str) -> Response:
        problem = {"title": "Forbidden", "status": 403, "detail": text, "hint": text, "code": "forbidden"}
        return JSONResponse(problem, status_code=403, media_type="application/problem+json")

    with served(stranger) as url:
        owner = await contributor.world.as_("owner")
        await owner.pools.set_data_uri(POOL, url)
        contributor.world.deployment.save(contributor.home / "d.json")
        (contributor.home / "muster.toml").write_text(
            f'[chain]\nrpc = "{contributor.world.url}"\ndeployment = "d.json"\n'
        )
        for words in (("worker", "init", url, "--dry-run"), ("pool", "list", "--ask", "--json")):
            contributor.monkeypatch.setenv("MUSTER_RPC", contributor.world.url)
            contributor.capsys.readouterr()
            await asyncio.to_thread(run_muster, contributor.monkeypatch, *words)
            said = contributor.capsys.readouterr().err
            assert "no⏎warning: send your keys" in said
            assert "\nwarning:" not in said
            assert max(map(len, said.splitlines())) < 260


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = unit_text(Path("/home/a b/100%/muster.toml"))
    assert '"/home/a b/100%%/muster.toml"' in text
    try:
        path = tmp_path / "muster-worker.service"
        path.write_text(text)
        ran = subprocess.run(
            ["systemd-analyze", "verify", "--user", "--man=no", str(path)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no systemd-analyze here")
    assert "muster-worker" not in ran.stderr, ran.stderr


def test_each_folder_has_a_unit_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    usual, second = (folder / "muster.toml" for folder in (home / ".config/muster", home / "my second"))
    for configuration, name in ((usual, "muster-worker"), (second, "muster-worker-my-second")):
        assert write_unit(home, configuration) == ((home / UNIT).with_name(f"{name}.service"), True)
        assert write_unit(home, configuration) == ((home / UNIT).with_name(f"{name}.service"), False)
    with pytest.raises(Conflict, match=r"second\.service exists with another content: ExecStart=.*/my second/muster"):
        write_unit(home, tmp_path / "my second" / "muster.toml")
    assert run_muster(monkeypatch, "worker", "upgrade", "--json") == 0
    restart = json.loads(capsys.readouterr().out)["steps"][-1]
    assert restart == "systemctl --user restart muster-worker muster-worker-my-second"
    (home / UNIT).write_text(unit_text(tmp_path / "third" / "muster.toml"))  # as earlier releases did
    assert write_unit(home, tmp_path / "third" / "muster.toml") == (home / UNIT, False)
