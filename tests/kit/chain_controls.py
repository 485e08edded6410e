"""Controls that both development chains have and real chains lack: snapshots, time travel, mining on demand."""

from __future__ import annotations

from datetime import timedelta

import httpx

from ledger.errors import ChainRefused, ChainUnavailable
from protocol.identifiers import Address

_TIMEOUT = timedelta(seconds=30)


class ChainControls:
    """Controls one development chain. Use it as an async context manager, or call `close`.

    Args:
        url: Its JSON-RPC endpoint.
    """

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=_TIMEOUT.total_seconds(), trust_env=False)

    async def __aenter__(self) -> ChainControls:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.aclose()

    async def snapshot(self) -> str:
        """Takes a snapshot of the chain; returns its id for `revert`."""
        return str(await self._call("evm_snapshot"))

    async def revert(self, snapshot: str) -> None:
        """Reverts the chain to a snapshot. This deletes the snapshot and all later ones.

        Raises:
            ChainRefused: There is no such snapshot (any more).
        """
        if not await self._call("evm_revert", snapshot):
            raise ChainRefused(f"there is no snapshot {snapshot}", hint="a snapshot can be used once")

    async def mine(self, blocks: int = 1) -> None:
        """Mines blocks immediately."""
        for _ in range(blocks):
            await self._call("evm_mine")

    async def warp(self, duration: timedelta) -> None:
        """Moves the chain's clock forward by whole seconds and mines a block, so that contracts see the new time."""
        await self._call("evm_increaseTime", int(duration.total_seconds()))
        await self._call("evm_mine")

    async def set_next_timestamp(self, timestamp: int) -> None:
        """Sets the timestamp of the next block (Unix time in seconds); the chain's clock continues from there."""
        await self._call("evm_setNextBlockTimestamp", timestamp)

    async def set_balance(self, account: Address, wei: int) -> None:
        """Sets an account's balance."""
        await self._call("anvil_setBalance", account, hex(wei))

    async def block_number(self) -> int:
        """Returns the height of the newest block."""
        return int(str(await self._call("eth_blockNumber")), 16)

    async def timestamp(self) -> int:
        """Returns the timestamp of the newest block, Unix time in seconds."""
        block = await self._call("eth_getBlockByNumber", "latest", False)
        if not isinstance(block, dict):
            raise ChainUnavailable(f"{self._client.base_url} has no newest block")
        return int(block["timestamp"], 16)

    async def _call(self, method: str, *params: object) -> object:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        try:
            answer = (await self._client.post("/", json=request)).json()
        except (httpx.HTTPError, ValueError) as error:
            raise ChainUnavailable(f"{self._client.base_url} did not answer {method}: {error!r}") from error
        if not isinstance(answer, dict) or "error" in answer:
            raise ChainRefused(f"{method}: {str(answer)[:300]}")
        result: object = answer["result"]
        return result
