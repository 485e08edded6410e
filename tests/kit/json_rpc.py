"""Calls a chain like a wallet: raw JSON-RPC and hand-signed transactions."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from eth_account import Account

from ledger.devchain import DevelopmentAccount
from protocol.identifiers import Address, address
from tests.kit import gadget

GWEI = 10**9


class Refusal(Exception):
    """The chain answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.data: str | None = error.get("data")


class Wire:
    """JSON-RPC by hand."""

    def __init__(self, url: str) -> None:
        self.client = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    async def __call__(self, method: str, *params: object) -> Any:
        answer = (
            await self.client.post("/", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)})
        ).json()
        if "error" in answer:
            raise Refusal(answer["error"])
        return answer["result"]

    async def transact(self, account: DevelopmentAccount, **fields: Any) -> str:
        """Signs, sends, waits until it is in a block, returns the hash."""
        sent = await self.submit(account, **fields)
        await self.mined(sent)
        return sent

    async def mined(self, sent: str) -> dict[str, Any]:
        """Waits until a transaction is in a block, returns its receipt."""
        for _ in range(5000):  # anvil answers before it has mined
            receipt: dict[str, Any] | None = await self("eth_getTransactionReceipt", sent)
            if receipt is not None:
                return receipt
            await asyncio.sleep(0.01)
        raise AssertionError(f"{sent} was not mined")

    async def submit(self, account: DevelopmentAccount, **fields: Any) -> str:
        """Signs, sends, returns the hash."""
        if "nonce" not in fields:
            fields["nonce"] = int(await self("eth_getTransactionCount", account.address, "pending"), 16)
        result = await self("eth_sendRawTransaction", signed(account, **fields))
        assert isinstance(result, str)
        return result

    async def deploy_gadget(self, account: DevelopmentAccount) -> Address:
        """Puts the test contract on the chain."""
        receipt = await self(
            "eth_getTransactionReceipt", await self.transact(account, to=None, data=gadget.CREATION, gas=200_000)
        )
        assert receipt["status"] == "0x1"
        return address(receipt["contractAddress"])


def signed(account: DevelopmentAccount, **fields: Any) -> str:
    """A raw type-2 transaction (legacy if it has a gasPrice)."""
    transaction: dict[str, Any] = {"chainId": 31337, "gas": 100_000, "value": 0, **fields}
    if "gasPrice" not in fields:
        transaction = {"maxFeePerGas": 5 * GWEI, "maxPriorityFeePerGas": GWEI, "type": 2, **transaction}
    if transaction.get("to") is None:
        transaction.pop("to", None)
    raw = bytes(Account.sign_transaction(transaction, account.key).raw_transaction)
    return "0x" + raw.hex()
