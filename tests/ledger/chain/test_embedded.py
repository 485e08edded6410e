"""Behaviour specific to the embedded chain: its file, mining and limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sqlite3
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from ledger.devchain import development_accounts, free_port, start_chain
from ledger.devchain import process as chain_process
from ledger.devchain.embedded import methods
from ledger.devchain.embedded.errors import RpcError
from ledger.devchain.embedded.node import EmbeddedChain
from ledger.devchain.embedded.server import MAX_BODY, build_app, dispatch
from ledger.devchain.embedded.store import ChainStore
from ledger.errors import ChainUnavailable, NoFreePort
from ledger.rpc.connection import connect
from protocol.identifiers import address
from protocol.runtime.clock import ManualClock
from tests.kit import gadget
from tests.kit.chain import LiveChain
from tests.kit.chain_controls import ChainControls
from tests.kit.json_rpc import Refusal, Wire, signed


async def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(0.1)


async def test_state_receipts_and_events_survive_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "chain.sqlite"
    async with start_chain(state=file) as chain, Wire(chain.url) as wire:
        contract = await wire.deploy_gadget(chain.accounts[0])
        await wire.transact(chain.accounts[0], to=contract, data=gadget.store(1, 42))
        emitted = await wire.transact(chain.accounts[0], to=contract, data=gadget.emit(7, b"kept"))
        before = await wire("eth_getBlockByNumber", "latest", True)
        await _kill(chain.pid)
    async with start_chain(state=file) as chain, Wire(chain.url) as wire:
        assert await wire("eth_getBlockByNumber", "latest", True) == before
        call = {"to": contract, "data": "0x" + gadget.load(1).hex()}
        assert int(await wire("eth_call", call, "latest"), 16) == 42
        assert (await wire("eth_getTransactionReceipt", emitted))["status"] == "0x1"
        logs = await wire("eth_getLogs", {"address": contract, "fromBlock": "0x0", "toBlock": "latest"})
        assert [bytes.fromhex(log["data"][2:]) for log in logs] == [b"kept"]
        await wire.transact(chain.accounts[0], to=contract, data=gadget.store(1, 43))
        assert int(await wire("eth_call", call, "latest"), 16) == 43


async def test_no_transaction_is_charged_more_gas_than_its_limit(embedded: LiveChain) -> None:
    alice, bob = embedded.accounts[:2]
    async with Wire(embedded.url) as wire:
        with pytest.raises(Refusal, match="minimum needed 61000"):  # though only 37,000 are used
            await wire.transact(alice, to=bob.address, data=b"\xff" * 1_000, gas=60_999)


async def test_the_chains_clock_keeps_its_offset_over_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "chain.sqlite"
    async with start_chain(state=file) as chain, ChainControls(chain.url) as controls:
        await controls.warp(timedelta(days=2))
        before = await controls.timestamp()
    async with start_chain(state=file) as chain, ChainControls(chain.url) as controls:
        await controls.mine()
        assert 0 <= await controls.timestamp() - before < 60


async def test_a_chain_file_is_locked_to_one_chain_and_one_process(tmp_path: Path) -> None:
    file = tmp_path / "chain.sqlite"
    async with start_chain(state=file):
        with pytest.raises(ChainUnavailable, match="stop the other chain"):
            async with start_chain(state=file):
                pass
    with pytest.raises(ChainUnavailable, match="belongs to chain 31337, not to 5"):
        async with start_chain(state=file, chain_id=5):
            pass


async def test_blocks_come_on_time_and_the_chains_clock_does_not_run_ahead() -> None:
    async with start_chain(block_time=timedelta(milliseconds=100)) as chain, ChainControls(chain.url) as controls:
        since, began, start = time.monotonic(), await controls.block_number(), await controls.timestamp()
        async with asyncio.timeout(60):
            while (blocks := await controls.block_number() - began) < 8:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
        seconds = await controls.timestamp() - start
        passed = time.monotonic() - since
    assert blocks <= passed / 0.1 + 2
    assert seconds <= passed + 1


async def test_a_transaction_waits_for_others_but_not_for_the_block_time() -> None:
    hour, moment = timedelta(hours=1), timedelta(seconds=1)
    async with start_chain(block_time=hour, gather=moment) as chain, Wire(chain.url) as wire:
        for _ in range(2):
            before = int(await wire("eth_blockNumber"), 16)
            sent = [
                await wire.submit(account, to=account.address, value=1, gas=21_000) for account in chain.accounts[:5]
            ]
            receipts = [await wire.mined(each) for each in sent]
            assert {int(receipt["blockNumber"], 16) for receipt in receipts} == {before + 1}
        assert int(await wire("eth_blockNumber"), 16) == before + 1  # and no empty blocks after it


async def test_a_transaction_that_cannot_be_mined_yet_causes_at_most_one_empty_block() -> None:
    hour, moment = timedelta(hours=1), timedelta(milliseconds=10)
    async with start_chain(block_time=hour, gather=moment) as chain, Wire(chain.url) as wire:
        alice = chain.accounts[0]
        await wire.submit(alice, to=alice.address, gas=21_000, nonce=5)
        await asyncio.sleep(0.3)
        assert int(await wire("eth_blockNumber"), 16) <= 1


async def test_many_senders_share_a_block_when_blocks_come_on_time() -> None:
    async with start_chain(block_time=timedelta(milliseconds=300)) as chain, Wire(chain.url) as wire:
        began, target = time.monotonic(), chain.accounts[9].address
        hashes = [
            await wire.submit(account, to=target, nonce=nonce, value=1, gas=21_000)
            for account in chain.accounts[:3]
            for nonce in range(5)
        ]
        sent_in = time.monotonic() - began
        receipts = [await wire.mined(sent) for sent in hashes]
    assert len({receipt["blockNumber"] for receipt in receipts}) <= sent_in / 0.3 + 2


async def test_reverting_and_sending_other_transactions_makes_a_reorg(embedded: LiveChain) -> None:
    async with Wire(embedded.url) as wire:
        snapshot = await embedded.controls.snapshot()
        await embedded.controls.mine()
        first = await wire("eth_getBlockByNumber", "latest", False)
        await embedded.controls.revert(snapshot)
        await embedded.controls.mine()
        second = await wire("eth_getBlockByNumber", "latest", False)
        assert first["number"] == second["number"]
        assert first["hash"] != second["hash"]
        assert await wire("eth_getBlockByHash", first["hash"], False) is None


async def test_a_query_for_too_many_events_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "MAX_LOGS", 1)
    alice = development_accounts(1)[0]
    node = EmbeddedChain(ChainStore(None), chain_id=31337, balances={bytes.fromhex(alice.address[2:]): 10**21})

    async def ask(method: str, *params: object) -> Any:
        answer = await dispatch(node, {"id": 1, "method": method, "params": list(params)})
        assert answer is not None
        return answer.get("result", answer.get("error"))

    created = await ask("eth_sendRawTransaction", signed(alice, data=gadget.CREATION, nonce=0, gas=200_000))
    contract = address((await ask("eth_getTransactionReceipt", created))["contractAddress"])
    for nonce in (1, 2):
        await ask("eth_sendRawTransaction", signed(alice, to=contract, data=gadget.emit(1), nonce=nonce))
    assert len(await ask("eth_getLogs", {"fromBlock": "0x2", "toBlock": "0x2"})) == 1
    assert (await ask("eth_getLogs", {"fromBlock": "0x0"}))["code"] == -32005


@pytest.mark.parametrize(("longest", "turns"), [(timedelta(hours=1), 0), (timedelta(), 3)], ids=["short", "long"])
async def test_a_long_block_yields_to_requests_and_a_short_one_does_not(
    monkeypatch: pytest.MonkeyPatch, longest: timedelta, turns: int
) -> None:
    alice, asked = development_accounts(1)[0], 0
    node = EmbeddedChain(
        ChainStore(None), chain_id=31337, balances={bytes.fromhex(alice.address[2:]): 10**21}, automine=False
    )
    for nonce in range(3):
        await node.submit(bytes.fromhex(signed(alice, to=alice.address, nonce=nonce, value=1)[2:]))
    monkeypatch.setattr("ledger.devchain.embedded.node._MAX_BLOCKING", longest)

    async def ask() -> None:
        nonlocal asked
        while True:
            asked += 1
            await asyncio.sleep(0)

    asking = asyncio.create_task(ask())
    await node.mine()
    asking.cancel()
    assert asked == turns


async def test_a_full_disk_loses_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    alice = development_accounts(1)[0]
    store = ChainStore(None)
    node = EmbeddedChain(store, chain_id=31337, balances={bytes.fromhex(alice.address[2:]): 10**21}, automine=False)
    sent = [await node.submit(bytes.fromhex(signed(alice, to=alice.address, nonce=n, value=1)[2:])) for n in (0, 1)]
    with monkeypatch.context() as full:

        def refuse(_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        full.setattr(store, "append", refuse)
        with pytest.raises(RpcError, match="disk is full"):
            await node.mine()
        assert all(node.pool.get(each) is not None for each in sent)
        with pytest.raises(RpcError, match="disk is full"):  # reported at once instead of after a useless wait
            await node.submit(bytes.fromhex(signed(alice, to=alice.address, nonce=2, value=1)[2:]))
    await node.mine()
    assert [record.hash for record in store.transactions_of(1)] == sent


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b"17", -32600),
        (b'{"id":1}', -32600),
        (b'{"id":1,"method":"eth_getBalance","params":{}}', -32602),
        (b'{"id":1,"method":"eth_getBalance","params":["0x12"]}', -32602),
        (b'{"id":1,"method":"eth_getBlockByNumber","params":["0xzz"]}', -32602),
        (b'{"id":1,"method":"eth_sendRawTransaction","params":["0x02ff"]}', -32602),
        (b'{"id":1,"method":"eth_getLogs","params":[{"topics":"x"}]}', -32602),
        (b'{"id":1,"method":"eth_call","params":[{"to":"0x12"}]}', -32602),
        (b"[" * 100_000, -32700),
    ],
)
async def test_a_malformed_request_gets_a_json_rpc_error(embedded: LiveChain, body: bytes, code: int) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(embedded.url, content=body)
        assert answer.json()["error"]["code"] == code


async def test_an_oversized_request_is_refused(embedded: LiveChain) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(embedded.url, content=b" " * (MAX_BODY + 1))
        assert answer.status_code == 413


async def test_an_endless_loop_ends_when_its_gas_runs_out(embedded: LiveChain) -> None:
    async with Wire(embedded.url) as wire:
        contract = await wire.deploy_gadget(embedded.accounts[0])
        with pytest.raises(Refusal, match="OutOfGas"):
            await wire("eth_call", {"to": contract, "data": "0x05", "gas": hex(500_000)}, "latest")


@pytest.mark.parametrize("depth", [0, 1, 3, 30])
async def test_estimated_gas_suffices_for_deeply_nested_calls(embedded: LiveChain, depth: int) -> None:
    # Takes n, calls itself with n - 1 and all the gas it may pass on; at 0 it stores a 1. A failed call is
    # ignored, so that too little gas shows in the state only.
    code = bytes.fromhex("6000358015601d576001900360005260006000602060006000305af1005b600160005500")
    creation = bytes([0x60, len(code), 0x80, 0x60, 11, 0x60, 0, 0x39, 0x60, 0, 0xF3]) + code
    async with Wire(embedded.url) as wire:
        alice = embedded.accounts[0]
        made = await wire("eth_getTransactionReceipt", await wire.transact(alice, to=None, data=creation, gas=200_000))
        contract, data = made["contractAddress"], depth.to_bytes(32, "big")
        gas = int(await wire("eth_estimateGas", {"from": alice.address, "to": contract, "data": "0x" + data.hex()}), 16)
        await wire.transact(alice, to=contract, data=data, gas=gas)
        assert int(await wire("eth_getStorageAt", contract, "0x0", "latest"), 16) == 1


async def test_a_simulated_call_changes_no_state(embedded: LiveChain) -> None:
    async with Wire(embedded.url) as wire:
        alice = embedded.accounts[0]
        contract = await wire.deploy_gadget(alice)
        store = {"from": alice.address, "to": contract, "data": "0x" + gadget.store(1, 7).hex()}
        load = {"to": contract, "data": "0x" + gadget.load(1).hex()}
        estimates = {await wire("eth_estimateGas", store) for _ in range(3)}
        for _ in range(2):
            await wire("eth_call", store, "latest")
            assert int(await wire("eth_call", load, "latest"), 16) == 0
        assert len(estimates) == 1  # and no call had warm storage from an earlier one
        assert estimates == {await wire("eth_estimateGas", store)}


async def test_a_port_that_is_in_use_is_reported(embedded: LiveChain) -> None:
    port = int(embedded.url.rsplit(":", 1)[1])
    with pytest.raises(ChainUnavailable, match=f"port {port} is in use already"):
        async with start_chain(port=port):
            pass


async def test_a_chain_process_that_exits_early_is_reported_with_the_tail_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ChainUnavailable, match=r"ended with code [12](?s:.*)unable to open"):
        async with start_chain(state=tmp_path / "taken"):
            pass


async def test_the_chain_process_ends_with_its_context(tmp_path: Path) -> None:
    async with start_chain() as chain:
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(chain.pid, 0)


def test_free_ports_differ_and_lie_below_the_systems_ephemeral_range() -> None:
    found = [free_port() for _ in range(300)]
    assert len(set(found)) == len(found)
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(found) < max(lowest, 32_768)


def test_an_error_names_the_range_when_all_ports_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port()
    monkeypatch.setattr(chain_process, "_PORTS", range(first, first + 2))
    with contextlib.ExitStack() as stack:
        for port in (first, first + 1):
            listener = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # another process has it, which serves as well
                listener.bind(("127.0.0.1", port))
        with pytest.raises(NoFreePort, match=f"none of the ports {first} to {first + 1}"):
            free_port()


async def test_a_chain_in_the_same_process_follows_the_clock_that_it_is_given() -> None:
    clock = ManualClock()
    node = EmbeddedChain(ChainStore(None), chain_id=31337, clock=clock)
    transport = httpx.ASGITransport(app=build_app(node, block_time=None))
    web3 = await connect("http://chain.invalid", expected_chain_id=31337, clock=clock, transport=transport)
    clock.jump(timedelta(days=400))
    await web3.provider.request("evm_mine")
    block = await web3.provider.request("eth_getBlockByNumber", "latest", False)
    assert (int(block["number"], 16), int(block["timestamp"], 16)) == (1, int(clock.now().timestamp()))


async def test_a_chain_that_can_not_be_reached_in_the_same_process_is_unavailable() -> None:
    async def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("cut", request=request)

    with pytest.raises(ChainUnavailable):
        await connect("http://chain.invalid", expected_chain_id=1, attempts=1, transport=httpx.MockTransport(fail))
