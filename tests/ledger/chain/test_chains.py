"""Behaviour that every development chain must have, run against each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from eth_abi.abi import encode

from ledger.devchain import ChainKind
from ledger.errors import ChainRefused
from tests.kit import gadget
from tests.kit.chain import LiveChain
from tests.kit.json_rpc import GWEI, Refusal, Wire, signed


@pytest.fixture
async def wire(chain: LiveChain) -> AsyncIterator[Wire]:
    async with Wire(chain.url) as connection:
        yield connection


async def test_a_transfer_moves_the_value_and_costs_gas(chain: LiveChain, wire: Wire) -> None:
    alice, bob = chain.accounts[:2]
    before = int(await wire("eth_getBalance", bob.address, "latest"), 16)
    done = await wire("eth_getTransactionReceipt", await wire.transact(alice, to=bob.address, value=7, gas=21_000))
    assert done["status"] == "0x1"
    assert int(done["gasUsed"], 16) == 21_000
    assert int(await wire("eth_getBalance", bob.address, "latest"), 16) == before + 7


async def test_a_legacy_transaction_is_mined_too(chain: LiveChain, wire: Wire) -> None:
    alice, bob = chain.accounts[:2]
    mined = await wire.transact(alice, to=bob.address, value=1, gasPrice=5 * GWEI, gas=21_000)
    assert (await wire("eth_getTransactionReceipt", mined))["type"] == "0x0"
    assert (await wire("eth_getTransactionByHash", mined))["from"].lower() == alice.address.lower()


async def test_contracts_store_values_emit_events_and_answer_calls(chain: LiveChain, wire: Wire) -> None:
    alice = chain.accounts[0]
    contract = await wire.deploy_gadget(alice)
    await wire.transact(alice, to=contract, data=gadget.store(3, 99))
    answer = await wire("eth_call", {"to": contract, "data": "0x" + gadget.load(3).hex()}, "latest")
    assert int(answer, 16) == 99
    assert int(await wire("eth_getStorageAt", contract, "0x3", "latest"), 16) == 99
    assert await wire("eth_getCode", contract, "latest") == "0x" + gadget.RUNTIME.hex()


async def test_a_call_at_an_older_block_sees_that_blocks_state(chain: LiveChain, wire: Wire) -> None:
    alice = chain.accounts[0]
    contract = await wire.deploy_gadget(alice)
    await wire.transact(alice, to=contract, data=gadget.store(1, 10))
    older = await wire("eth_blockNumber")
    await wire.transact(alice, to=contract, data=gadget.store(1, 20))
    call = {"to": contract, "data": "0x" + gadget.load(1).hex()}
    assert int(await wire("eth_call", call, older), 16) == 10
    assert int(await wire("eth_call", call, "latest"), 16) == 20


async def test_a_revert_carries_code_3_and_the_contracts_error_data(chain: LiveChain, wire: Wire) -> None:
    alice = chain.accounts[0]
    contract = await wire.deploy_gadget(alice)
    reason = bytes.fromhex("08c379a0") + encode(["string"], ["no such lease"])
    call = {"from": alice.address, "to": contract, "data": "0x" + gadget.revert(reason).hex()}
    for method in ("eth_call", "eth_estimateGas"):
        with pytest.raises(Refusal, match=r"execution reverted.*no such lease") as refusal:
            await wire(method, call)
        assert refusal.value.code == 3
        assert refusal.value.data == "0x" + reason.hex()


async def test_a_reverted_transaction_is_mined_with_status_0_and_uses_the_nonce(chain: LiveChain, wire: Wire) -> None:
    alice = chain.accounts[0]
    contract = await wire.deploy_gadget(alice)
    mined = await wire.transact(alice, to=contract, data=gadget.revert(b"\x01\x02\x03\x04"))
    receipt = await wire("eth_getTransactionReceipt", mined)
    assert receipt["status"] == "0x0"
    assert receipt["logs"] == []
    count = int(await wire("eth_getTransactionCount", alice.address, "latest"), 16)
    assert count == int((await wire("eth_getTransactionByHash", mined))["nonce"], 16) + 1


async def test_the_estimated_gas_is_sufficient(chain: LiveChain, wire: Wire) -> None:
    alice = chain.accounts[0]
    contract = await wire.deploy_gadget(alice)
    data = gadget.store(5, 5)
    gas = int(await wire("eth_estimateGas", {"from": alice.address, "to": contract, "data": "0x" + data.hex()}), 16)
    receipt = await wire("eth_getTransactionReceipt", await wire.transact(alice, to=contract, data=data, gas=gas))
    assert receipt["status"] == "0x1"
    assert gas <= int(receipt["gasUsed"], 16) * 1.2


async def test_events_are_found_by_address_topic_and_range(chain: LiveChain, wire: Wire) -> None:
    alice = chain.accounts[0]
    first, second = await wire.deploy_gadget(alice), await wire.deploy_gadget(alice)
    start = await wire("eth_blockNumber")
    for contract, kind in ((first, 1), (first, 2), (second, 1), (second, 3)):
        await wire.transact(alice, to=contract, data=gadget.emit(kind, bytes([kind])))
    end = await wire("eth_blockNumber")

    async def found(**wanted: object) -> list[tuple[str, str]]:
        logs = await wire("eth_getLogs", {"fromBlock": start, "toBlock": end, **wanted})
        return [(log["address"].lower(), log["data"]) for log in logs]

    def topic(number: int) -> str:
        return "0x" + number.to_bytes(32, "big").hex()

    assert await found(address=first) == [(first.lower(), "0x01"), (first.lower(), "0x02")]
    assert await found(topics=[topic(1)]) == [(first.lower(), "0x01"), (second.lower(), "0x01")]
    assert await found(address=[first, second], topics=[[topic(2), topic(3)]]) == [
        (first.lower(), "0x02"),
        (second.lower(), "0x03"),
    ]
    block = await wire("eth_getBlockByNumber", end, False)
    only = await wire("eth_getLogs", {"blockHash": block["hash"]})
    assert [log["data"] for log in only] == ["0x03"]
    assert only[0]["blockHash"] == block["hash"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nonce": 0, "value": 10**40}, "nonce|insufficient funds"),
        ({"value": 10**40}, "insufficient funds"),
        ({"chainId": 1}, "chain id"),
        ({"gas": 20_000}, "intrinsic gas"),
    ],
)
async def test_an_invalid_transaction_is_refused_with_the_usual_message(
    chain: LiveChain, wire: Wire, fields: dict[str, int], words: str
) -> None:
    alice, bob = chain.accounts[:2]
    await wire.transact(alice, to=bob.address, value=1)
    with pytest.raises(Refusal, match=f"(?i){words}"):
        await wire.transact(alice, to=bob.address, **fields)


async def test_gas_estimates_cover_the_floor_price_of_call_data(chain: LiveChain, wire: Wire) -> None:
    alice, bob = chain.accounts[:2]
    data = b"\xff" * 2_000 + b"\0" * 1_000
    least = 21_000 + 10 * (4 * 2_000 + 1_000)  # EIP-7623: more than their former price as calldata
    call = {"from": alice.address, "to": bob.address, "data": "0x" + data.hex()}
    assert int(await wire("eth_estimateGas", call), 16) == least
    receipt = await wire.mined(await wire.submit(alice, to=bob.address, data=data, gas=least))
    assert int(receipt["gasUsed"], 16) == least


async def test_the_same_nonce_twice_is_refused_as_too_low(chain: LiveChain, wire: Wire) -> None:
    alice, bob = chain.accounts[:2]
    nonce = int(await wire("eth_getTransactionCount", alice.address, "pending"), 16)
    await wire.transact(alice, to=bob.address, nonce=nonce)
    with pytest.raises(Refusal, match="nonce too low"):
        await wire.transact(alice, to=bob.address, nonce=nonce, value=1)


async def test_a_later_nonce_waits_for_the_earlier_one(chain: LiveChain, wire: Wire) -> None:
    alice, bob = chain.accounts[:2]
    nonce = int(await wire("eth_getTransactionCount", alice.address, "latest"), 16)
    later = await wire.submit(alice, to=bob.address, nonce=nonce + 1)
    assert await wire("eth_getTransactionReceipt", later) is None
    assert (await wire("eth_getTransactionByHash", later))["blockNumber"] is None
    await wire.transact(alice, to=bob.address, nonce=nonce)
    await chain.controls.mine()
    assert (await wire("eth_getTransactionReceipt", later))["status"] == "0x1"


async def test_a_replacement_must_pay_a_higher_fee(chain: LiveChain, wire: Wire) -> None:
    alice, bob = chain.accounts[:2]
    nonce = int(await wire("eth_getTransactionCount", alice.address, "latest"), 16) + 1
    await wire.submit(alice, to=bob.address, nonce=nonce)
    if chain.kind is ChainKind.EMBEDDED:  # anvil accepts any higher fee
        with pytest.raises(Refusal, match="underpriced"):
            await wire.submit(alice, to=bob.address, nonce=nonce, value=1, maxFeePerGas=5 * GWEI + 1)
    bumped = await wire.submit(
        alice, to=bob.address, nonce=nonce, value=1, maxFeePerGas=6 * GWEI, maxPriorityFeePerGas=2 * GWEI
    )
    await wire.transact(alice, to=bob.address, nonce=nonce - 1)
    await chain.controls.mine()
    assert (await wire("eth_getTransactionReceipt", bumped))["status"] == "0x1"


async def test_reverting_to_a_snapshot_undoes_blocks_events_and_time(chain: LiveChain, wire: Wire) -> None:
    alice = chain.accounts[0]
    contract = await wire.deploy_gadget(alice)
    head, time = await wire("eth_blockNumber"), await chain.controls.timestamp()
    snapshot = await chain.controls.snapshot()
    mined = await wire.transact(alice, to=contract, data=gadget.emit(9))
    await chain.controls.warp(timedelta(days=3))
    await chain.controls.revert(snapshot)
    assert await wire("eth_blockNumber") == head
    assert await wire("eth_getTransactionReceipt", mined) is None
    assert await wire("eth_getLogs", {"address": contract, "fromBlock": "0x0", "toBlock": "latest"}) == []
    await chain.controls.mine()
    assert await chain.controls.timestamp() - time < 3600
    with pytest.raises(ChainRefused, match="snapshot"):
        await chain.controls.revert(snapshot)


async def test_the_block_time_can_be_moved_forward(chain: LiveChain, wire: Wire) -> None:
    contract = await wire.deploy_gadget(chain.accounts[0])
    before = await chain.controls.timestamp()
    await chain.controls.warp(timedelta(hours=2))
    seen = int(await wire("eth_call", {"to": contract, "data": "0x" + gadget.TIME.hex()}, "latest"), 16)
    assert 7200 <= seen - before <= 7260
    await chain.controls.set_next_timestamp(before + 10_000)
    await chain.controls.mine()
    assert await chain.controls.timestamp() == before + 10_000


async def test_an_account_balance_can_be_set(chain: LiveChain, wire: Wire) -> None:
    alice, bob = chain.accounts[:2]
    await chain.controls.set_balance(bob.address, 5)
    assert int(await wire("eth_getBalance", bob.address, "latest"), 16) == 5
    await wire.transact(alice, to=bob.address, value=1)
    assert int(await wire("eth_getBalance", bob.address, "latest"), 16) == 6


async def test_fee_history_ends_with_the_next_blocks_base_fee(chain: LiveChain, wire: Wire) -> None:
    await chain.controls.mine(3)
    history = await wire("eth_feeHistory", "0x2", "latest", [50])
    assert len(history["gasUsedRatio"]) == 2
    assert len(history["baseFeePerGas"]) == 3
    await chain.controls.mine()
    latest = await wire("eth_getBlockByNumber", "latest", False)
    assert int(latest["baseFeePerGas"], 16) == int(history["baseFeePerGas"][-1], 16)


async def test_batch_requests_are_answered_in_one_response(chain: LiveChain, wire: Wire) -> None:
    batch = [{"jsonrpc": "2.0", "id": index, "method": "eth_chainId", "params": []} for index in range(3)]
    answers = (await wire.client.post("/", json=batch)).json()
    assert sorted(answer["id"] for answer in answers) == [0, 1, 2]
    assert {answer["result"] for answer in answers} == {"0x7a69"}


async def test_an_unknown_method_is_reported_as_unknown(chain: LiveChain, wire: Wire) -> None:
    with pytest.raises(Refusal) as refusal:
        await wire("eth_makeMeRich")
    assert refusal.value.code in {-32601, -32602}


async def test_signed_transactions_are_never_executed_twice(chain: LiveChain, wire: Wire) -> None:
    alice, bob = chain.accounts[:2]
    nonce = int(await wire("eth_getTransactionCount", alice.address, "pending"), 16)
    raw = signed(alice, to=bob.address, value=3, nonce=nonce)
    before = int(await wire("eth_getBalance", bob.address, "latest"), 16)
    await wire("eth_sendRawTransaction", raw)
    with pytest.raises(Refusal):
        await wire("eth_sendRawTransaction", raw)
    assert int(await wire("eth_getBalance", bob.address, "latest"), 16) == before + 3
