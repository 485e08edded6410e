"""Connecting to a chain that is down, slow, wrong or no chain; decoding revert data."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from eth_abi.abi import encode
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st
from web3.types import TxParams

from ledger.devchain import free_port
from ledger.errors import ChainRefused, ChainUnavailable, InsufficientFunds, TransactionReverted, WrongChain
from ledger.rpc.connection import connect
from ledger.rpc.revert_decoder import RevertReader
from tests.kit import gadget
from tests.kit.chain import LiveChain
from tests.kit.json_rpc import Wire, signed
from tests.kit.silent_server import SilentServer, as_it_falls_due
from tests.ledger.proxy import bad_line

ABI: list[dict[str, Any]] = [
    {
        "type": "error",
        "name": "LeaseUsed",
        "inputs": [{"name": "lease", "type": "bytes32"}, {"name": "step", "type": "uint64"}],
    },
    {
        "type": "error",
        "name": "Nested",
        "inputs": [{"name": "pair", "type": "tuple", "components": [{"type": "uint8"}, {"type": "address"}]}],
    },
    {"type": "function", "name": "ignored", "inputs": []},
]
LEASE_USED = keccak(text="LeaseUsed(bytes32,uint64)")[:4] + encode(["bytes32", "uint64"], [b"\x11" * 32, 7])


async def test_connecting_checks_the_chain_id(chain: LiveChain) -> None:
    web3 = await connect(chain.url, expected_chain_id=chain.chain_id)
    assert await web3.eth.block_number >= 0
    await web3.provider.disconnect()


async def test_a_wrong_chain_id_is_refused_with_both_ids(chain: LiveChain) -> None:
    with pytest.raises(WrongChain, match="is chain 31337, not chain 1") as wrong:
        await connect(chain.url, expected_chain_id=1)
    assert not wrong.value.retryable


async def test_an_unreachable_chain_is_reported_after_bounded_attempts() -> None:
    with pytest.raises(ChainUnavailable, match="can't be reached") as down:
        await connect(f"http://127.0.0.1:{free_port()}", expected_chain_id=31337, attempts=2)
    assert down.value.retryable
    assert down.value.hint


async def test_a_slow_chain_times_out(development_chain: LiveChain) -> None:
    async with bad_line(development_chain.url) as line:
        line.delay_s = 3
        with pytest.raises(ChainUnavailable, match="did not answer eth_chainId in time"):
            await connect(line.url, expected_chain_id=31337, timeout=timedelta(seconds=1), attempts=2)
        assert line.requests == 2


async def test_cancelling_a_request_at_its_timeout_raises_cancelled_error() -> None:
    async with SilentServer() as chain:
        asking = asyncio.create_task(connect(chain.url, expected_chain_id=31337, timeout=timedelta(seconds=0.5)))
        await chain.asked()
        await as_it_falls_due(0.5)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_read_is_retried_when_its_answer_is_lost(development_chain: LiveChain) -> None:
    async with bad_line(development_chain.url) as line:
        web3 = await connect(line.url, expected_chain_id=31337)
        line.lose_answers_to = {"eth_blockNumber": 2}
        assert await web3.eth.block_number >= 0
        assert line.lose_answers_to == {"eth_blockNumber": 0}
        await web3.provider.disconnect()


@pytest.mark.parametrize(("status", "retryable"), [(503, True), (429, True), (404, False)])
async def test_http_errors_are_classified_as_retryable_or_not(
    development_chain: LiveChain, status: int, retryable: bool
) -> None:
    async with bad_line(development_chain.url) as line:
        line.status = status
        with pytest.raises(ChainUnavailable) as error:
            await connect(line.url, expected_chain_id=31337, attempts=1)
        assert error.value.retryable is retryable


async def test_keys_in_an_rpc_url_are_not_shown() -> None:
    url = f"http://user:hunter2@127.0.0.1:{free_port()}/v3/s3cret?key=t0ken"
    with pytest.raises(ChainUnavailable) as error:
        await connect(url, expected_chain_id=1, attempts=1)
    assert not any(secret in error.value.detail for secret in ("hunter2", "s3cret", "t0ken"))


async def test_a_custom_error_is_decoded_with_name_and_arguments(chain: LiveChain) -> None:
    async with Wire(chain.url) as wire:
        contract = await wire.deploy_gadget(chain.accounts[0])
    web3 = await connect(chain.url, expected_chain_id=chain.chain_id, reverts=RevertReader([ABI]))
    with pytest.raises(TransactionReverted, match="LeaseUsed") as reverted:
        await web3.eth.call(cast("TxParams", {"to": contract, "data": gadget.revert(LEASE_USED)}))
    assert reverted.value.name == "LeaseUsed"
    assert reverted.value.arguments == {"lease": b"\x11" * 32, "step": 7}
    await web3.provider.disconnect()


async def test_rpc_refusals_are_mapped_to_ledger_errors(chain: LiveChain) -> None:
    web3 = await connect(chain.url, expected_chain_id=chain.chain_id)
    poor, other = chain.accounts[:2]
    await chain.controls.set_balance(poor.address, 1)
    nonce = await web3.eth.get_transaction_count(to_checksum_address(poor.address))
    with pytest.raises(InsufficientFunds):
        await web3.eth.send_raw_transaction(bytes.fromhex(signed(poor, to=other.address, nonce=nonce)[2:]))
    with pytest.raises(ChainRefused):
        await web3.eth.send_raw_transaction(b"\x02\xff")
    await web3.provider.disconnect()


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (LEASE_USED, "LeaseUsed(lease=0x" + "11" * 32 + ", step=7)"),
        (bytes.fromhex("08c379a0") + encode(["string"], ["no"]), "Error(message=no)"),
        (bytes.fromhex("4e487b71") + encode(["uint256"], [0x11]), "Panic(code=17, meaning=arithmetic overflow)"),
        (LEASE_USED[:20], "reverted with 0x" + LEASE_USED[:20].hex()),
        (b"", "reverted without a reason"),
    ],
)
def test_reverts_are_described_in_sentences(data: bytes, shown: str) -> None:
    assert str(RevertReader([ABI]).read(data)) == shown


@given(st.binary(max_size=200), st.sampled_from([b"", LEASE_USED[:4], bytes.fromhex("08c379a0")]))
def test_any_revert_data_is_decoded_without_an_exception(data: bytes, selector: bytes) -> None:
    assert RevertReader([ABI]).read(selector + data).data == selector + data
