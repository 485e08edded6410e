"""JSON-RPC connection to a node: every request has a time limit, and reads are retried.

    web3 = await connect(url, expected_chain_id=31337, reverts=RevertReader([abi]))

Requests through the returned object raise only errors of `ledger.errors`, never exceptions of a library.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit

import aiohttp
import httpx
from pydantic_core import from_json
from web3 import AsyncWeb3
from web3.providers.async_base import AsyncJSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from ledger.errors import (
    AnswerTooBig,
    ChainRefused,
    ChainUnavailable,
    InsufficientFunds,
    TransactionReverted,
    WrongChain,
)
from ledger.native_signing import require_native_signing
from ledger.rpc.revert_decoder import RevertReader
from protocol.http.url_safety import is_loopback, without_secrets
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.retry import Backoff, retry

MAX_ANSWER = 64 * 1024 * 1024
"""Maximum bytes of a response body; a longer body raises `AnswerTooBig`."""

_CONNECTIONS = 16
"""Maximum number of concurrent requests; further requests are queued."""

_KEEP_IDLE = timedelta(seconds=3)
"""Idle time after which connections are closed. It is shorter than the server's idle time (uvicorn: 5 s), because a
request fails if the server closes the connection at the same moment."""

_FIRST_WAIT = timedelta(milliseconds=100)
_LONGEST_WAIT = timedelta(seconds=2)
_NOT_REPEATED = ("eth_send", "evm_", "anvil_")
"""Prefixes of methods that change something, and that are therefore never retried."""
_EXECUTION_REVERTED = 3
_HTTP_TOO_LARGE = 413
_HTTP_TOO_MANY = 429
_HTTP_SERVER_FAULT = 500

_REFUSALS = (
    ("already known", "already-known"),
    ("already imported", "already-known"),
    ("nonce too low", "nonce-too-low"),
    ("nonce too high", "nonce-too-high"),
    ("underpriced", "underpriced"),
    ("method not found", "method-not-found"),
    ("does not exist", "method-not-found"),
)
"""Phrases in error messages of nodes (go-ethereum, Nethermind, Erigon, anvil) and the `ChainRefused` code for each."""

_TOO_BIG = (
    "query returned more than",
    "block range",
    "response size",
    "too many results",
    "limit exceeded",
    "logs matched",
)
"""Phrases in error messages of nodes that refuse the size of an `eth_getLogs` query."""


async def connect(
    url: str,
    *,
    expected_chain_id: int,
    timeout: timedelta = timedelta(seconds=10),  # noqa: ASYNC109 - of each request, not of this call
    attempts: int = 4,
    reverts: RevertReader | None = None,
    clock: Clock | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncWeb3[ChainConnection]:
    """Connects to a node and checks its chain id.

    Args:
        url: JSON-RPC endpoint over http or https. If the URL contains an API key, error messages never show it.
        expected_chain_id: EIP-155 chain id.
        timeout: Time limit of each attempt of each request.
        attempts: Maximum attempts per read while the node is down or slow. Requests that change something are sent
            once.
        reverts: Decodes the custom errors of the contracts to be called.
        clock: Clock for the waits between attempts.
        transport: HTTP transport to a node in the same process, instead of connections by aiohttp.

    Raises:
        ChainUnavailable: The node did not answer.
        WrongChain: The node serves another chain.
        NativeSigningMissing: libsecp256k1 is not installed.
    """
    require_native_signing()
    provider = ChainConnection(
        url, timeout=timeout, attempts=attempts, reverts=reverts, clock=clock, transport=transport
    )
    web3 = AsyncWeb3(provider)
    # This middleware queries the chain id before every estimate. Our signatures contain the chain id, so it is no use.
    web3.middleware_onion.remove("validation")
    try:
        await _check_chain(web3, provider.shown_url, expected_chain_id)
    except BaseException:
        await provider.disconnect()
        raise
    return web3


async def _check_chain(web3: AsyncWeb3[ChainConnection], shown_url: str, expected: int) -> None:
    actual = await web3.eth.chain_id
    if actual != expected:
        raise WrongChain(f"{shown_url} is chain {actual}, not chain {expected}")


class ChainConnection(AsyncJSONBaseProvider):
    """A web3 provider; close it with `disconnect`.

    It uses aiohttp, a dependency of web3, because a request takes an eighth of the CPU time that httpx needs, and every
    service sends several requests per second.

    Args:
        url: JSON-RPC endpoint.
        timeout: Time limit of each attempt.
        attempts: Attempts per read.
        reverts: Decodes custom errors.
        clock: Clock for the waits between attempts.
        transport: HTTP transport to a node in the same process, instead of connections by aiohttp.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta = timedelta(seconds=10),
        attempts: int = 4,
        reverts: RevertReader | None = None,
        clock: Clock | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__()
        self.reverts = reverts or RevertReader()
        self.shown_url = without_secrets(url)
        self._url = url
        self._backoff = Backoff(attempts=attempts, first=_FIRST_WAIT, most=_LONGEST_WAIT)
        self._clock = clock or SystemClock()
        self._transport = transport
        self._turns = asyncio.Semaphore(_CONNECTIONS)
        self._timeout = timeout
        self._opened: aiohttp.ClientSession | None = None

    async def disconnect(self) -> None:
        """Closes the connections."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    def _session(self) -> aiohttp.ClientSession:
        """Returns the HTTP session, opened on first use because it is bound to the running event loop."""
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_KEEP_IDLE.total_seconds()),
                timeout=aiohttp.ClientTimeout(total=None),  # `_attempt` applies the time limit (docs/decisions/0042)
                headers={"Content-Type": "application/json"},
                trust_env=not is_loopback(urlsplit(self._url).hostname or ""),
            )
        return self._opened

    async def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:  # noqa: ANN401 - web3's signature
        """Sends a request; retries reads while the node is down or slow.

        Raises:
            ChainUnavailable: Every attempt failed.
            TransactionReverted: A contract reverted the call.
            InsufficientFunds: The sender can't pay.
            ChainRefused: The node refused the request for another reason; `code` is the class of the refusal if
                `_REFUSALS` has the node's message.
        """
        body = self.encode_rpc_request(method, params)
        if method.startswith(_NOT_REPEATED):
            return await self._attempt(method, body)
        return await retry(lambda: self._attempt(method, body), clock=self._clock, backoff=self._backoff)

    async def request(self, method: str, *parameters: object) -> Any:  # noqa: ANN401 - as the method has it
        """Returns the raw JSON result of a request; raises as `make_request` does.

        Services read the chain several times per second. They parse the few fields that they need themselves: web3
        takes at least twice the CPU time, because it converts every field of a response.
        """
        return (await self.make_request(RPCEndpoint(method), parameters))["result"]

    async def make_batch_request(self, requests: list[tuple[RPCEndpoint, Any]]) -> NoReturn:
        """Not supported: nodes differ in how they count, limit and order the requests of a batch.

        Raises:
            ChainRefused: Always.
        """
        raise ChainRefused(f"{len(requests)} requests in a batch", hint="send them one by one, concurrently")

    async def _attempt(self, method: str, body: bytes) -> RPCResponse:
        try:
            # The time limit starts only when one of the 16 slots is free: time in the queue does not count.
            async with self._turns, asyncio.timeout(self._timeout.total_seconds()):
                status, content = await self._post(body)
        except TimeoutError as error:
            raise ChainUnavailable(f"{self.shown_url} did not answer {method} in time") from error
        except (aiohttp.ClientError, httpx.TransportError, OSError) as error:
            raise ChainUnavailable(f"{self.shown_url} can't be reached: {_reason(error)}") from error
        if status == _HTTP_TOO_LARGE:
            raise AnswerTooBig(f"{self.shown_url} refused {method}: too large", retryable=False)
        if status == _HTTP_TOO_MANY or status >= _HTTP_SERVER_FAULT:
            raise ChainUnavailable(f"{self.shown_url} answered {method} with HTTP {status}")
        try:
            answer = from_json(content)
        except ValueError as error:
            raise self._not_json_rpc(method, status) from error
        if not isinstance(answer, dict) or ("result" not in answer and not isinstance(answer.get("error"), dict)):
            raise self._not_json_rpc(method, status)
        if "error" in answer:
            self._raise(method, answer["error"])
        return cast("RPCResponse", answer)

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        """Returns status and body of the response."""
        if self._transport is not None:
            request = httpx.Request("POST", self._url, content=body, headers={"Content-Type": "application/json"})
            answer = await self._transport.handle_async_request(request)
            return answer.status_code, await answer.aread()
        content = bytearray()
        async with self._session().post(self._url, data=body) as response:
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > MAX_ANSWER:
                    raise AnswerTooBig(f"{self.shown_url} sent more than {MAX_ANSWER} bytes", retryable=False)
        return response.status, bytes(content)

    def _not_json_rpc(self, method: str, status: int) -> ChainUnavailable:
        return ChainUnavailable(
            f"{self.shown_url} answered {method} with something that is not JSON-RPC (HTTP {status})",
            hint="check the URL: another service may answer there",
            retryable=False,
        )

    def _raise(self, method: str, error: Mapping[str, object]) -> NoReturn:
        message = str(error.get("message", ""))[:500]
        words = message.lower()
        code = error.get("code")
        data = revert_data(error.get("data"))
        if code == _EXECUTION_REVERTED or (data and "revert" in words) or "execution reverted" in words:
            raise self.reverted(data or b"", what=method)
        if "insufficient funds" in words or "insufficient balance" in words:
            raise InsufficientFunds(message)
        if method == "eth_getLogs" and any(part in words for part in _TOO_BIG):
            raise AnswerTooBig(f"{self.shown_url}: {message}", retryable=False)
        for part, kind in _REFUSALS:
            if part in words:
                raise ChainRefused(f"{method}: {message}", code=kind)
        if "rate limit" in words or "too many requests" in words or "header not found" in words:
            raise ChainUnavailable(f"{self.shown_url}: {message}")
        raise ChainRefused(f"{method}: {message} (code {code})")

    def reverted(self, data: bytes, *, what: str, transaction: str | None = None) -> TransactionReverted:
        """Returns the error for revert data, with the custom error decoded."""
        revert = self.reverts.read(data)
        return TransactionReverted(
            f"{what}: {revert}",
            name=revert.name,
            arguments=revert.arguments,
            data="0x" + data.hex(),
            transaction=transaction,
        )


def revert_data(value: object) -> bytes | None:
    """Extracts revert data from an RPC error's `data`; some nodes wrap the hex in an object or a sentence."""
    if isinstance(value, Mapping):
        value = value.get("data")
    if not isinstance(value, str):
        return None
    start = value.find("0x")
    try:
        return bytes.fromhex(value[start + 2 :]) if start >= 0 else None
    except ValueError:
        return None


def _reason(error: Exception) -> str:
    """Returns the operating system's message for a failed connection, without the URL, which may hold a secret."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    number = cause.errno if isinstance(cause, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else type(error).__name__
