"""Node operations of one key: estimates gas, signs, sends, and finds revert reasons. A wallet keeps no nonces."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from eth_account.signers.local import LocalAccount
from web3 import AsyncWeb3
from web3.types import TxParams

from ledger.errors import ChainRefused, ChainUnavailable, TransactionReverted
from ledger.rpc.connection import ChainConnection
from ledger.transactions.fees import Fees, offer
from ledger.transactions.pending import Broadcast, BroadcastResult, SendPolicy, TransactionCall, TransactionIntent
from protocol.errors import MusterError
from protocol.identifiers import Address, digest
from protocol.runtime.clock import Clock


class Wallet:
    """Signs and sends for one key; `NonceAllocator` chooses the nonces.

    Args:
        web3: From `ledger.rpc.connection.connect`.
        account: The signing account.
        chain_id: Signed into every transaction, so that it is invalid on other chains.
        clock: Clock for the cache of market fees.
        policy: Gas margin and fee limits.
    """

    def __init__(
        self,
        web3: AsyncWeb3[ChainConnection],
        account: LocalAccount,
        *,
        chain_id: int,
        clock: Clock,
        policy: SendPolicy,
    ) -> None:
        self._web3 = web3
        self._account = account
        self._chain_id = chain_id
        self._clock = clock
        self._policy = policy
        self._quote: tuple[float, Fees] | None = None

    @property
    def address(self) -> Address:
        """The account that pays."""
        return Address(self._account.address)

    async def estimate(self, call: TransactionCall) -> int:
        """Returns the gas that a call takes now, plus the policy's margin; at least the call's `least_gas`.

        Raises:
            TransactionReverted: The contract would refuse the call.
            ChainUnavailable: The node did not answer.
        """
        fields = {**_fields(call), "from": self.address}
        estimate = await self._web3.eth.estimate_gas(cast("TxParams", fields))
        return max(call.least_gas, estimate * (100 + self._policy.gas_margin_percent) // 100)

    async def market(self) -> Fees:
        """Returns the current market fees, cached for the policy's `quote_for`."""
        now = self._clock.monotonic()
        if self._quote is None or now - self._quote[0] >= self._policy.quote_for.total_seconds():
            history, tip = await asyncio.gather(
                self._web3.eth.fee_history(1, "latest", []), self._web3.eth.max_priority_fee
            )
            base = int(history["baseFeePerGas"][-1])
            self._quote = (now, offer(base_fee=base, tip=int(tip), limit=self._policy.most_fee))
        return self._quote[1]

    async def count(self, block: str | int) -> int:
        """Returns how many nonces are used at a block; at `pending`, including the node's pending transactions."""
        return int(await self._web3.eth.get_transaction_count(self._account.address, cast("Any", block)))

    def sign(self, intent: TransactionIntent, nonce: int) -> Broadcast:
        """Signs a version of the transaction under this nonce, with its current gas limit and fees."""
        if intent.fees is None:
            raise RuntimeError("fees are set before signing")
        transaction: dict[str, Any] = {
            **_fields(intent.call),
            "type": 2,
            "chainId": self._chain_id,
            "nonce": nonce,
            "gas": intent.gas,
            "maxFeePerGas": intent.fees.most,
            "maxPriorityFeePerGas": intent.fees.tip,
        }
        signed = self._account.sign_transaction(transaction)
        return Broadcast(nonce=nonce, transaction=digest(bytes(signed.hash)), raw=bytes(signed.raw_transaction))

    async def submit(self, broadcast: Broadcast) -> BroadcastResult:
        """Sends one version and returns the node's response.

        Raises:
            InsufficientFunds: The account can't pay.
            ChainRefused: The node refuses the transaction for a reason that `BroadcastResult` does not cover.
        """
        try:
            await self._web3.eth.send_raw_transaction(broadcast.raw)
        except ChainUnavailable:
            return BroadcastResult.UNKNOWN
        except ChainRefused as error:
            if error.code == "already-known":
                return BroadcastResult.TAKEN
            if error.code == "nonce-too-low":
                return BroadcastResult.USED
            if error.code == "underpriced":
                return BroadcastResult.OCCUPIED
            raise
        return BroadcastResult.TAKEN

    async def revert_reason(self, broadcast: Broadcast, block: int) -> TransactionReverted:
        """Calls the transaction again on the parent block's state, to get the contract's reason for a failure.

        Receipts don't contain the reason. The transactions that precede the failed one in its block are not repeated,
        so the result may differ.
        """
        provider = self._web3.provider
        sent = await self._web3.eth.get_transaction(cast("Any", broadcast.transaction))
        again: dict[str, Any] = {
            "from": sent["from"],
            "data": sent["input"],
            "value": sent["value"],
            "gas": sent["gas"],
        }
        if sent.get("to"):
            again["to"] = sent["to"]
        try:
            await self._web3.eth.call(cast("TxParams", again), max(0, block - 1))
        except TransactionReverted as error:
            return provider.reverted(
                bytes.fromhex(error.data[2:]), what=broadcast.transaction, transaction=broadcast.transaction
            )
        except MusterError as error:
            detail = f"{broadcast.transaction} failed in block {block}: {error.detail}"
            return TransactionReverted(detail, transaction=broadcast.transaction)
        return TransactionReverted(
            f"{broadcast.transaction} failed in block {block} and would have succeeded one block earlier",
            transaction=broadcast.transaction,
        )


def _fields(call: TransactionCall) -> dict[str, Any]:
    fields: dict[str, Any] = {"data": call.data, "value": call.value}
    return fields if call.to is None else {**fields, "to": call.to}
