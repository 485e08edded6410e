"""Base of typed clients, which determine the service's address and verify signed responses against it."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import httpx

from protocol.clients.location import ServiceLocation
from protocol.errors import InvalidInput, Unauthenticated
from protocol.http.client import BearerToken, RequestSigner, ServiceClient, ServiceResponse
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock, SystemClock
from protocol.wire.identity import ServiceIdentity

IDENTITY_LIMIT = 4096


class TypedClient:
    """Client of one service, with a key or a token. Requests the service's address if it is needed and was not pinned.

    Args:
        location: URL of the service, followed by `#0x…` if its address is pinned.
        key: Signs every request.
        token: Token of a pool owner, instead of a key.
        clock: Clock of request times; the system's by default.
        allow_plain_http: Allows `http` to other machines; only for networks that are themselves encrypted.
        transport: Replaces the network in tests that run the service in the same process.

    Raises:
        InvalidInput: The location's URL is not allowed, or not exactly one of key and token is given.
    """

    def __init__(
        self,
        location: str | ServiceLocation,
        *,
        key: Key | None = None,
        token: str | None = None,
        clock: Clock | None = None,
        allow_plain_http: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if isinstance(location, str):
            location = ServiceLocation.parse(location, allow_plain_http=allow_plain_http)
        if (key is None) == (token is None):
            raise InvalidInput(
                "a client speaks with a key or with a token", hint="give the client either a key or a token"
            )
        self.location = location
        self._key = key
        self._token = token
        self._clock = SystemClock() if clock is None else clock
        self._allow_plain_http = allow_plain_http
        self._transport = transport
        self._client: ServiceClient | None = None
        self._anonymous: ServiceClient | None = None
        self._former: list[ServiceClient] = []

    async def identity(self) -> ServiceIdentity:
        """Asks the service for its address and contract.

        Raises:
            Unauthenticated: The address differs from the pinned one.
        """
        if self._anonymous is None:
            self._anonymous = self._new_client(None)
        answer = await self._anonymous.call("GET", "/v1/identity", answer_limit=IDENTITY_LIMIT)
        identity = answer.read(ServiceIdentity)
        if self.location.address is not None and identity.address != self.location.address:
            raise Unauthenticated(
                f"{self.location.url} says it is {identity.address}, and {self.location.address} is expected",
                hint="check the URL; if the service's key was rotated, pin the new address",
                code="wrong-service",
            )
        return identity

    async def service(self) -> ServiceClient:
        """Returns the HTTP client, which signs requests and checks signatures, or sends the token."""
        if self._client is None:
            auth = await self._speaker()
            self._client = self._new_client(auth)
        return self._client

    async def call(self, method: str, path: str, **options: Any) -> ServiceResponse:  # noqa: ANN401 - the options of `call` below
        """Calls the service like `ServiceClient.call`; reads its address again after a key rotation, unless pinned."""
        service = await self.service()
        try:
            return await service.call(method, path, **options)
        except Unauthenticated as error:
            if error.code != "wrong-audience" or self.location.address is not None:
                raise
            if service is self._client:  # unless a concurrent call has replaced the client already
                self._client = None
                self._former.append(service)  # closed in `aclose`: other calls may still wait for its answers
        return await (await self.service()).call(method, path, **options)

    async def aclose(self) -> None:
        """Closes the connections."""
        for client in (self._client, self._anonymous, *self._former):
            if client is not None:
                await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def _own_address(self) -> Address:
        if self._key is None:
            raise InvalidInput("only a node's own key can do this", hint="give the client the key instead of a token")
        return self._key.address

    async def _speaker(self) -> RequestSigner | BearerToken:
        if self._token is not None:
            return BearerToken(self._token)
        if self._key is None:
            raise InvalidInput("a client speaks with a key or with a token")
        audience: Address = self.location.address or (await self.identity()).address
        return RequestSigner(self._key, audience=audience, clock=self._clock)

    def _new_client(self, auth: RequestSigner | BearerToken | None) -> ServiceClient:
        return ServiceClient(
            self.location.url,
            signer=auth if isinstance(auth, RequestSigner) else None,
            token=self._token if isinstance(auth, BearerToken) else None,
            clock=self._clock,
            allow_plain_http=self._allow_plain_http,
            transport=self._transport,
        )


def beyond(wait: timedelta) -> timedelta:
    """Returns the time limit of a long poll: the service's wait plus time to respond."""
    return wait + timedelta(seconds=10)
