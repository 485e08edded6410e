"""Sending transactions: concurrency, two senders with one key, fees, deadlines, reverts, crashes, lost answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from ledger.devchain import ChainKind, ChainProcess, start_chain
from ledger.errors import ChainUnavailable, InsufficientFunds, NonceTaken, TransactionNotMined, TransactionReverted
from ledger.rpc.connection import connect
from ledger.rpc.revert_decoder import RevertReader
from ledger.transactions.fees import Fees, bumped, offer
from ledger.transactions.pending import Broadcast, BroadcastHook
from ledger.transactions.sender import SendPolicy, TransactionCall, TransactionSender
from ledger.transactions.wallet import Wallet
from protocol.identifiers import Address
from protocol.runtime.clock import Clock
from tests.kit import gadget
from tests.kit.chain import LiveChain
from tests.kit.chain_controls import ChainControls
from tests.kit.json_rpc import GWEI, Wire, signed
from tests.ledger.proxy import bad_line

SOON = timedelta(seconds=20)
QUICK = SendPolicy(poll=timedelta(milliseconds=20), bump_after=timedelta(milliseconds=300))
UNLUCKY = {"type": "error", "name": "Unlucky", "inputs": [{"name": "number", "type": "uint256"}]}
UNLUCKY_13 = keccak(text="Unlucky(uint256)")[:4] + (13).to_bytes(32, "big")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def patient_processes() -> AsyncIterator[dict[ChainKind, ChainProcess]]:
    """Starts chains that mine only on request of a test."""
    async with contextlib.AsyncExitStack() as stack:
        yield {
            kind: await stack.enter_async_context(start_chain(kind, block_time=timedelta(hours=1), accounts=20))
            for kind in (ChainKind.EMBEDDED,)
        }


@pytest.fixture
async def patient(patient_processes: dict[ChainKind, ChainProcess]) -> AsyncIterator[LiveChain]:
    """Returns a chain on which transactions wait until the test mines."""
    process = patient_processes[ChainKind.EMBEDDED]
    async with ChainControls(process.url) as controls:
        snapshot = await controls.snapshot()
        yield LiveChain(
            kind=process.kind,
            url=process.url,
            chain_id=process.chain_id,
            accounts=process.accounts,
            controls=controls,
        )
        await controls.revert(snapshot)


def key_of(chain: LiveChain, index: int = 0) -> LocalAccount:
    account: LocalAccount = Account.from_key(chain.accounts[index].key)
    return account


@contextlib.asynccontextmanager
async def sender_on(
    chain: LiveChain,
    *,
    account: int = 0,
    url: str | None = None,
    policy: SendPolicy = QUICK,
    clock: Clock | None = None,
) -> AsyncIterator[TransactionSender]:
    web3 = await connect(
        url or chain.url,
        expected_chain_id=chain.chain_id,
        reverts=RevertReader([[UNLUCKY]]),
        timeout=timedelta(seconds=5),
        attempts=2,
    )
    try:
        async with TransactionSender(
            web3, key_of(chain, account), chain_id=chain.chain_id, policy=policy, clock=clock
        ) as sender:
            yield sender
    finally:
        await web3.provider.disconnect()


async def deployed(chain: LiveChain, *, mine: bool = False) -> Address:
    async with sender_on(chain, account=19) as sender:
        sending = asyncio.create_task(
            sender.send(TransactionCall(to=None, data=gadget.CREATION, gas=200_000), deadline=SOON)
        )
        if mine:
            await pending(chain, 1)
            await chain.controls.mine()
        receipt = await sending
    assert receipt.created is not None
    return receipt.created


async def pending(chain: LiveChain, count: int, account: int = 19) -> None:
    """Returns when this number of an account's transactions is pending."""
    async with Wire(chain.url) as wire:
        who = chain.accounts[account].address
        for _ in range(5000):
            mined, queued = [int(await wire("eth_getTransactionCount", who, tag), 16) for tag in ("latest", "pending")]
            if queued - mined >= count:
                return
            await asyncio.sleep(0.01)
    raise AssertionError(f"{queued - mined} of {count} transactions wait")


async def emitted(chain: LiveChain, contract: Address) -> Counter[int]:
    """Returns how often each topic was emitted."""
    async with Wire(chain.url) as wire:
        logs = await wire("eth_getLogs", {"address": contract, "fromBlock": "0x0", "toBlock": "latest"})
    return Counter(int(log["topics"][0], 16) for log in logs)


async def crash_while_sending(
    chain: LiveChain, sender: TransactionSender, call: TransactionCall, hook: BroadcastHook
) -> None:
    """Sends until the transaction is pending, and then stops as after a crash."""
    sending = asyncio.create_task(sender.send(call, deadline=SOON, before_broadcast=hook))
    await pending(chain, 1, account=0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def test_a_receipt_contains_logs_gas_and_block(chain: LiveChain) -> None:
    contract = await deployed(chain)
    async with sender_on(chain) as sender:
        receipt = await sender.send(TransactionCall(to=contract, data=gadget.emit(5, b"hello")), deadline=SOON)
    assert [(log.address, log.data, int(log.topics[0], 16)) for log in receipt.logs] == [(contract, b"hello", 5)]
    assert receipt.gas_used > 21_000
    assert receipt.logs[0].block_hash == receipt.block_hash


async def test_fifty_concurrent_transactions_are_each_executed_once(chain: LiveChain) -> None:
    contract = await deployed(chain)
    async with sender_on(chain) as sender:
        calls = [TransactionCall(to=contract, data=gadget.emit(number)) for number in range(50)]
        receipts = await asyncio.gather(*(sender.send(call, deadline=SOON) for call in calls))
    assert await emitted(chain, contract) == Counter(range(50))
    assert [int(receipt.logs[0].topics[0], 16) for receipt in receipts] == list(range(50))


async def test_waiting_transactions_share_a_block(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    async with sender_on(patient) as sender:
        calls = [TransactionCall(to=contract, data=gadget.emit(number)) for number in range(20)]
        sending = asyncio.gather(*(sender.send(call, deadline=SOON) for call in calls))
        await pending(patient, 20, account=0)
        await patient.controls.mine()
        receipts = await sending
    assert len({receipt.block_number for receipt in receipts}) == 1


async def test_a_nonce_is_not_reused_when_the_count_was_read_during_another_send(chain: LiveChain) -> None:
    contract = await deployed(chain)
    placing, may_go, estimate, nonces = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[int]()

    async def wait(_: Broadcast) -> None:
        placing.set()
        await may_go.wait()

    async def note(version: Broadcast) -> None:
        nonces.append(version.nonce)

    async with bad_line(chain.url) as line, sender_on(chain, url=line.url) as sender:
        line.hold["eth_estimateGas"] = estimate
        call = TransactionCall(to=contract, data=gadget.emit(1), gas=200_000)
        first = asyncio.create_task(sender.send(call, deadline=SOON, before_broadcast=wait))
        await placing.wait()
        call = TransactionCall(to=contract, data=gadget.emit(2))
        second = asyncio.create_task(sender.send(call, deadline=SOON, before_broadcast=note))
        await asyncio.sleep(0.3)  # the sender reads the count, and then waits for the gas estimate
        may_go.set()
        await first
        await asyncio.sleep(0.1)
        estimate.set()
        await second
    assert len(nonces) == 1
    assert await emitted(chain, contract) == Counter([1, 2])


async def test_calls_with_known_gas_get_nonces_in_the_order_of_sending(
    chain: LiveChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deploying contracts that name each other's addresses depends on this order."""
    contract = await deployed(chain)
    nonces: dict[int, int] = {}

    async def send(number: int) -> None:
        async def note(version: Broadcast) -> None:
            nonces[number] = version.nonce

        call = TransactionCall(to=contract, data=gadget.emit(number), gas=200_000)
        await sender.send(call, deadline=SOON, before_broadcast=note)

    async with sender_on(chain) as sender:
        count, pauses = Wallet.count, iter([0.4, 0.2])

        async def first_asked_last_answered(wallet: Wallet, block: str | int) -> int:
            await asyncio.sleep(next(pauses, 0))
            return await count(wallet, block)

        monkeypatch.setattr(Wallet, "count", first_asked_last_answered)
        await asyncio.gather(*map(send, range(6)))
    assert [nonces[number] for number in range(6)] == sorted(nonces.values())


async def test_a_deadline_of_zero_is_not_replaced_by_the_default(patient: LiveChain) -> None:
    async with sender_on(patient) as sender:
        with pytest.raises(TransactionNotMined):
            await asyncio.wait_for(sender.send(TransactionCall(to=sender.address), deadline=timedelta()), timeout=5)


async def test_two_senders_with_one_key_execute_every_call_once(chain: LiveChain) -> None:
    contract = await deployed(chain)
    async with sender_on(chain) as one, sender_on(chain) as two:
        await asyncio.gather(
            *(one.send(TransactionCall(to=contract, data=gadget.emit(number)), deadline=SOON) for number in range(20)),
            *(
                two.send(TransactionCall(to=contract, data=gadget.emit(100 + number)), deadline=SOON)
                for number in range(20)
            ),
        )
    assert await emitted(chain, contract) == Counter([*range(20), *range(100, 120)])


async def test_two_senders_with_one_key_share_the_pending_pool(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    async with sender_on(patient) as one, sender_on(patient) as two:
        sending = asyncio.gather(
            *(one.send(TransactionCall(to=contract, data=gadget.emit(number)), deadline=SOON) for number in range(10)),
            *(two.send(TransactionCall(to=contract, data=gadget.emit(number)), deadline=SOON) for number in range(10)),
        )
        while not sending.done():
            await asyncio.sleep(0.1)
            await patient.controls.mine()
        await sending
    # equal calls are separate transactions
    assert await emitted(patient, contract) == Counter([*range(10), *range(10)])


async def test_a_transaction_that_was_outbid_is_signed_again_and_executed_once(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    alice = patient.accounts[0]
    async with (
        sender_on(patient, policy=SendPolicy(poll=timedelta(milliseconds=20))) as sender,
        Wire(patient.url) as wire,
    ):
        nonce = int(await wire("eth_getTransactionCount", alice.address, "latest"), 16)
        sending = asyncio.create_task(sender.send(TransactionCall(to=contract, data=gadget.emit(1)), deadline=SOON))
        await pending(patient, 1, account=0)
        await wire.submit(
            alice,
            to=contract,
            data=gadget.emit(2),
            nonce=nonce,
            maxFeePerGas=90 * GWEI,
            maxPriorityFeePerGas=9 * GWEI,
        )
        await patient.controls.mine()
        assert await emitted(patient, contract) == Counter([2])
        await pending(patient, 1, account=0)
        await patient.controls.mine()
        await sending
    assert await emitted(patient, contract) == Counter([1, 2])


async def test_no_transaction_is_signed_again_before_its_nonce_is_settled(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    alice = patient.accounts[0]
    careful = SendPolicy(poll=timedelta(milliseconds=20), settled_after=3)
    async with sender_on(patient, policy=careful) as sender, Wire(patient.url) as wire:
        nonce = int(await wire("eth_getTransactionCount", alice.address, "latest"), 16)
        sending = asyncio.create_task(sender.send(TransactionCall(to=contract, data=gadget.emit(1)), deadline=SOON))
        await pending(patient, 1, account=0)
        bid = {"maxFeePerGas": 90 * GWEI, "maxPriorityFeePerGas": 9 * GWEI}
        await wire.submit(alice, to=contract, data=gadget.emit(2), nonce=nonce, **bid)
        await patient.controls.mine(3)
        await asyncio.sleep(0.3)
        count = await wire("eth_getTransactionCount", alice.address, "pending")
        assert int(count, 16) == nonce + 1
        await patient.controls.mine()
        await pending(patient, 1, account=0)
        await patient.controls.mine()
        await sending


async def test_the_fee_is_raised_while_no_block_comes(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    seen: list[Broadcast] = []
    thrice = asyncio.Event()

    async def note(broadcast: Broadcast) -> None:
        seen.append(broadcast)
        if len(seen) == 3:
            thrice.set()

    async with sender_on(patient) as sender:
        call = TransactionCall(to=contract, data=gadget.emit(1))
        sending = asyncio.create_task(sender.send(call, deadline=SOON, before_broadcast=note))
        await thrice.wait()
        await asyncio.sleep(0.05)
        await patient.controls.mine()
        receipt = await sending
    assert len({broadcast.nonce for broadcast in seen}) == 1
    assert receipt.transaction in {broadcast.transaction for broadcast in seen[1:]}
    assert await emitted(patient, contract) == Counter([1])


async def test_a_missed_deadline_reports_the_hashes_sent(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    async with sender_on(patient) as sender, Wire(patient.url) as wire:
        with pytest.raises(TransactionNotMined) as late:
            await sender.send(TransactionCall(to=contract, data=gadget.emit(1)), deadline=timedelta(seconds=2))
        assert late.value.retryable
        await patient.controls.mine()
        receipts = [await wire("eth_getTransactionReceipt", sent) for sent in late.value.hashes]
    assert sum(receipt is not None for receipt in receipts) == 1


async def test_the_sender_waits_for_confirmations(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    async with sender_on(patient) as sender:
        sending = asyncio.create_task(
            sender.send(TransactionCall(to=contract, data=gadget.emit(1)), deadline=SOON, confirmations=2)
        )
        await pending(patient, 1, account=0)
        await patient.controls.mine(2)
        await asyncio.sleep(0.15)
        assert not sending.done()
        await patient.controls.mine()
        await sending


async def test_a_nonce_gap_left_by_a_lost_transaction_is_filled(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    alice = patient.accounts[0]
    clean = await patient.controls.snapshot()
    async with sender_on(patient) as sender, Wire(patient.url) as wire:
        await wire.submit(alice, to=contract, data=gadget.emit(9))
        sending = asyncio.create_task(sender.send(TransactionCall(to=contract, data=gadget.emit(1)), deadline=SOON))
        await pending(patient, 2, account=0)
        await patient.controls.revert(clean)  # the node drops pending transactions
        while not sending.done():
            await asyncio.sleep(0.1)
            await patient.controls.mine()
        await sending
    assert await emitted(patient, contract) == Counter([1])


async def test_a_call_that_would_revert_is_not_sent_and_costs_no_gas(chain: LiveChain) -> None:
    contract = await deployed(chain)
    async with sender_on(chain) as sender, Wire(chain.url) as wire:
        before = await wire("eth_getTransactionCount", sender.address, "pending")
        with pytest.raises(TransactionReverted) as reverted:
            await sender.send(TransactionCall(to=contract, data=gadget.revert(UNLUCKY_13)), deadline=SOON)
        assert (reverted.value.name, reverted.value.arguments) == ("Unlucky", {"number": 13})
        assert reverted.value.transaction is None
        assert await wire("eth_getTransactionCount", sender.address, "pending") == before


async def test_a_revert_in_a_mined_block_is_explained(chain: LiveChain) -> None:
    contract = await deployed(chain)
    async with sender_on(chain) as sender:
        with pytest.raises(TransactionReverted) as reverted:
            await sender.send(TransactionCall(to=contract, data=gadget.revert(UNLUCKY_13), gas=100_000), deadline=SOON)
        assert reverted.value.name == "Unlucky"
        assert reverted.value.transaction is not None
        await sender.send(TransactionCall(to=contract, data=gadget.emit(1)), deadline=SOON)


async def test_insufficient_funds_are_reported_and_block_no_later_transaction(chain: LiveChain) -> None:
    contract = await deployed(chain)
    async with sender_on(chain) as sender:
        await chain.controls.set_balance(sender.address, 1000)
        with pytest.raises(InsufficientFunds) as poor:
            await sender.send(TransactionCall(to=contract, data=gadget.emit(1), gas=100_000), deadline=SOON)
        assert poor.value.detail.startswith(
            f"insufficient funds: {sender.address} can't pay the gas of this transaction, up to 0.0"
        )
        assert sender.address in poor.value.hint
        await chain.controls.set_balance(sender.address, 10**19)
        await sender.send(TransactionCall(to=contract, data=gadget.emit(2)), deadline=SOON)
    assert await emitted(chain, contract) == Counter([2])


async def test_a_lost_response_does_not_execute_a_call_twice(chain: LiveChain) -> None:
    contract = await deployed(chain)
    async with bad_line(chain.url) as line, sender_on(chain, url=line.url) as sender:
        line.lose_answers_to = {"eth_sendRawTransaction": 3}
        calls = [TransactionCall(to=contract, data=gadget.emit(number)) for number in range(5)]
        await asyncio.gather(*(sender.send(call, deadline=SOON) for call in calls))
    assert await emitted(chain, contract) == Counter(range(5))


async def test_nothing_is_sent_while_the_chain_is_unreachable(chain: LiveChain) -> None:
    contract = await deployed(chain)
    async with bad_line(chain.url) as line, sender_on(chain, url=line.url) as sender:
        line.down = True
        with pytest.raises(ChainUnavailable):
            await sender.send(TransactionCall(to=contract, data=gadget.emit(1)), deadline=SOON)
        line.down = False
        await sender.send(TransactionCall(to=contract, data=gadget.emit(2)), deadline=SOON)
    assert await emitted(chain, contract) == Counter([2])


async def test_the_sender_waits_while_the_chain_is_unreachable(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    async with bad_line(patient.url) as line, sender_on(patient, url=line.url) as sender:
        sending = asyncio.create_task(sender.send(TransactionCall(to=contract, data=gadget.emit(1)), deadline=SOON))
        await pending(patient, 1, account=0)
        line.down = True
        await patient.controls.mine()
        await asyncio.sleep(0.3)
        assert not sending.done()
        line.down = False
        await sending


async def test_the_outcome_can_be_looked_up_after_a_crash(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    written: list[Broadcast] = []

    async def write_down(broadcast: Broadcast) -> None:
        written.append(broadcast)

    async with sender_on(patient) as crashed:
        await crash_while_sending(patient, crashed, TransactionCall(to=contract, data=gadget.emit(1)), write_down)
    async with sender_on(patient) as restarted:
        asking = asyncio.create_task(restarted.outcome(written, deadline=SOON))
        await pending(patient, 1, account=0)
        await patient.controls.mine()
        receipt = await asking
    assert receipt.transaction in {broadcast.transaction for broadcast in written}
    assert await emitted(patient, contract) == Counter([1])


async def test_a_transaction_whose_nonce_was_taken_is_reported_after_a_crash(patient: LiveChain) -> None:
    contract = await deployed(patient, mine=True)
    alice = patient.accounts[0]
    written: list[Broadcast] = []

    async def write_down(broadcast: Broadcast) -> None:
        written.append(broadcast)

    async with sender_on(patient, policy=SendPolicy()) as crashed:
        await crash_while_sending(patient, crashed, TransactionCall(to=contract, data=gadget.emit(1)), write_down)
    async with Wire(patient.url) as wire, sender_on(patient) as restarted:
        bid = {"maxFeePerGas": 90 * GWEI, "maxPriorityFeePerGas": 9 * GWEI}
        raw = signed(alice, to=contract, data=gadget.emit(2), nonce=written[0].nonce, **bid)
        await wire("eth_sendRawTransaction", raw)
        await patient.controls.mine()
        with pytest.raises(NonceTaken):
            await restarted.outcome(written, deadline=SOON)


@given(
    most=st.integers(1, 10**12),
    tip=st.integers(0, 10**12),
    base=st.integers(0, 10**12),
    market_tip=st.integers(0, 10**11),
    limit=st.integers(1, 10**13),
)
def test_a_fee_bump_is_at_least_an_eighth_and_at_most_the_limit(
    most: int, tip: int, base: int, market_tip: int, limit: int
) -> None:
    former = Fees(most=most, tip=min(tip, most))
    higher = bumped(former, market=offer(base_fee=base, tip=market_tip, limit=limit), limit=limit)
    if higher is None:
        assert limit < most * 9 / 8 + 1
        return
    assert higher.most <= limit
    assert higher.most * 8 >= former.most * 9
    assert higher.tip * 8 >= former.tip * 9
    assert higher.tip <= higher.most
