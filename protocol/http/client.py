"""The HTTP client of all services: deadlines, bounded retries and answers, typed errors, signatures."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import httpx
import structlog
from pydantic import BaseModel, ValidationError

from protocol.errors import Conflict, InvalidInput, Unavailable, plain_message
from protocol.http.problems import error_of_answer
from protocol.http.url_safety import parse_http_url
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.signing import NONCE_HEADER, check_response, sign_request
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.retry import DEFAULT_BACKOFF, Backoff, Deadline, DeadlinePassed, is_retryable, retry
from protocol.versions import SPOKEN, VERSION_HEADER
from protocol.wire.base import parse_answer

Model = TypeVar("Model", bound=BaseModel)

ANSWER_LIMIT = 8 * 1024 * 1024
ATTEMPT_PATIENCE = timedelta(seconds=10)
CALL_PATIENCE = timedelta(seconds=30)

_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Idempotent methods (RFC 9110, 9.2.2)."""

_log = structlog.get_logger(__name__)


class RequestSigner(httpx.Auth):
    """Signs requests to one service with a fresh nonce and time.

    Args:
        key: Key of the sender.
        audience: Address of the service.
        clock: Clock of the request time; the system's by default.
    """

    requires_request_body = True

    def __init__(self, key: Key, *, audience: Address, clock: Clock | None = None) -> None:
        self._key = key
        self._audience = audience
        self._clock = SystemClock() if clock is None else clock

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Adds the five signature headers for the request line and the body as httpx sends them."""
        stamp = sign_request(
            self._key,
            audience=self._audience,
            method=request.method,
            target=request.url.raw_path.decode("ascii").removesuffix("?"),
            body=request.content,
            at=self._clock.now(),
        )
        request.headers.update(stamp.headers())
        yield request

    def check(self, request: httpx.Request, *, status: int, headers: httpx.Headers, body: bytes) -> None:
        """Checks that the audience signed this answer to a request of this signer.

        Raises:
            Unauthenticated: The signature is missing or wrong; the answer must not be used.
        """
        check_response(
            headers,
            service=self._audience,
            address=self._key.address,
            nonce=request.headers[NONCE_HEADER],
            status=status,
            body=body,
        )


class BearerToken(httpx.Auth):
    """Sends a pool owner's token. It is not signed, so it must only go over TLS or loopback."""

    def __init__(self, token: str) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Adds the token."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    def __repr__(self) -> str:
        return "BearerToken([redacted])"


class Unreachable(Unavailable):
    """No connection was established, so the request was never sent."""

    code = "unreachable"


class NoAnswer(Unavailable):
    """The request was sent, but its outcome is unknown."""

    code = "no-answer"


class BadAnswer(Unavailable):
    """The answer does not conform to the service's API."""

    code = "bad-answer"
    retryable = False


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """A successful answer: status below 300, within the size limit, and signed if that was required."""

    status: int
    headers: httpx.Headers
    body: bytes

    def read(self, model: type[Model]) -> Model:
        """Parses the body; fields that a newer service added are ignored.

        Raises:
            BadAnswer: The body does not have the form of `model`.
        """
        try:
            return parse_answer(model, self.body)
        except ValidationError as error:
            places = ", ".join(_field_problem(item["loc"], item["type"], item["msg"]) for item in error.errors()[:5])
            raise BadAnswer(
                f"the answer is no {model.__name__}: {places}", hint="the two ends may be of different versions"
            ) from None


def _field_problem(place: tuple[int | str, ...], kind: str, message: str) -> str:
    """Returns the path of the faulty field in a body, with the message if a validator of our models raised it."""
    words = ".".join(map(str, place)) or "body"
    return f"{words}: {plain_message(message)}" if kind == "value_error" else words


class ServiceClient:
    """Client of one service.

    Args:
        base_url: URL of the service; `https`, or `http` on this machine.
        signer: Signs every request; answers must be signed by its audience.
        token: Token of a pool owner, instead of `signer`.
        clock: Clock of deadlines and pauses; the system's by default.
        backoff: Number of attempts and the pauses between them.
        answer_limit: Size limit of an answer, in bytes.
        allow_plain_http: Allows `http` to other machines; only for networks that are themselves encrypted.
        tls: TLS context; by default, the system's certificate authorities are trusted.
        transport: Replaces the network in tests that run the service in the same process.

    Raises:
        InvalidInput: `base_url` is not an HTTP URL, or is `http` to another machine.
    """

    def __init__(
        self,
        base_url: str,
        *,
        signer: RequestSigner | None = None,
        token: str | None = None,
        clock: Clock | None = None,
        backoff: Backoff = DEFAULT_BACKOFF,
        answer_limit: int = ANSWER_LIMIT,
        allow_plain_http: bool = False,
        tls: ssl.SSLContext | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        check_service_url(base_url, allow_plain_http=allow_plain_http)
        self.base_url = base_url.rstrip("/")
        self._signer = signer
        self._auth = signer or (BearerToken(token) if token else None)
        self._clock = SystemClock() if clock is None else clock
        self._backoff = backoff
        self._answer_limit = answer_limit
        self._http = httpx.AsyncClient(
            transport=transport,
            verify=True if tls is None else tls,
            follow_redirects=False,
            headers={"Accept-Encoding": "identity", VERSION_HEADER: str(SPOKEN), "User-Agent": "muster"},
        )

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: BaseModel | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        patience: timedelta = CALL_PATIENCE,
        attempt_patience: timedelta = ATTEMPT_PATIENCE,
        repeatable: bool | None = None,
        signed_answer: bool = False,
        answer_limit: int | None = None,
    ) -> ServiceResponse:
        """Sends a request, with retries if they are safe and may help.

        The client repeats a request of any method if it was never sent, or if the service marks the error as retryable.
        If the outcome is unknown, the client repeats the request only if `repeatable`. Each attempt gets a new
        signature.

        Args:
            method: HTTP method in capitals.
            path: Path below the base URL, percent-encoded.
            query: Query parameters.
            body: A model is sent as JSON, bytes as they are.
            headers: Additional headers.
            patience: Time limit of all attempts with the pauses between them.
            attempt_patience: Time limit of one attempt.
            repeatable: Whether the request is idempotent; default: the method is GET, HEAD, PUT or DELETE.
            signed_answer: Accept a response only if the service signed it; for responses that the caller acts upon.
            answer_limit: Size limit of the answer in bytes, instead of the client's.

        Raises:
            MusterError: The service's error, or `Unreachable`, `NoAnswer`, `BadAnswer`;
                `Unauthenticated` if an answer that had to be signed was not.
        """
        if signed_answer and self._signer is None:
            raise InvalidInput("only answers to signed requests are signed", hint="give the client a signer")
        may_repeat = method in _REPEATABLE if repeatable is None else repeatable
        deadline = Deadline.after(patience, clock=self._clock)
        url = self.base_url + path + ("?" + urlencode(query) if query else "")
        content, kind = _content(body)
        limit = self._answer_limit if answer_limit is None else answer_limit

        async def attempt() -> ServiceResponse:
            request = self._http.build_request(
                method,
                url,
                content=content,
                headers={**kind, **(headers or {})},
                timeout=httpx.Timeout(min(attempt_patience, deadline.remaining).total_seconds() or 0.001),
            )
            once = Deadline.after(min(attempt_patience, deadline.remaining), clock=self._clock)
            try:
                return await once.bound(
                    self._attempt(request, signed_answer=signed_answer, limit=limit), what=f"{method} {path}"
                )
            except DeadlinePassed as error:
                raise NoAnswer(f"{self.base_url}: {error.detail}", hint=error.hint) from error

        def worth_another(error: BaseException) -> bool:
            if isinstance(error, NoAnswer) or (isinstance(error, Conflict) and error.code == "replayed"):
                # A 409 for a replayed nonce: a proxy may have sent the request twice, so the first copy may have been
                # served.
                return may_repeat and (error.retryable or isinstance(error, Conflict))
            return is_retryable(error)

        def tell(error: BaseException, wait: timedelta) -> None:
            _log.info("retrying", url=self.base_url + path, error=str(error), wait_s=round(wait.total_seconds(), 2))

        return await retry(
            attempt,
            clock=self._clock,
            backoff=self._backoff,
            deadline=deadline,
            when=worth_another,
            on_retry=tell,
        )

    async def get(self, path: str, **options: Any) -> ServiceResponse:  # noqa: ANN401 - the options of `call`
        """`call` with GET."""
        return await self.call("GET", path, **options)

    async def post(self, path: str, body: BaseModel | bytes | None = None, **options: Any) -> ServiceResponse:  # noqa: ANN401
        """`call` with POST."""
        return await self.call("POST", path, body=body, **options)

    async def put(self, path: str, body: BaseModel | bytes | None = None, **options: Any) -> ServiceResponse:  # noqa: ANN401
        """`call` with PUT."""
        return await self.call("PUT", path, body=body, **options)

    async def delete(self, path: str, **options: Any) -> ServiceResponse:  # noqa: ANN401
        """`call` with DELETE."""
        return await self.call("DELETE", path, **options)

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _attempt(self, request: httpx.Request, *, signed_answer: bool, limit: int) -> ServiceResponse:
        where = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        try:
            response = await self._http.send(request, auth=self._auth, stream=True)
            try:
                body = await _read(response, limit)
            finally:
                await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unreachable(
                f"can't reach {where}: {type(error).__name__}",
                hint="check the URL and the network, and that the service runs",
            ) from error
        except httpx.TransportError as error:
            raise NoAnswer(
                f"{where} did not answer: {type(error).__name__}", hint="it may be down or slow; its log may say why"
            ) from error
        if 300 <= response.status_code < 400:
            raise BadAnswer(
                f"{where} answered with a redirect", hint="use the service's own URL: redirects are not followed"
            )
        if response.status_code >= 400:
            raise error_of_answer(
                response.status_code,
                response.headers.get("content-type", ""),
                body,
                retry_after=_retry_after(response.headers.get("retry-after"), now=self._clock.now()),
            )
        if signed_answer and self._signer is not None:
            self._signer.check(response.request, status=response.status_code, headers=response.headers, body=body)
        return ServiceResponse(response.status_code, response.headers, body)


def check_service_url(url: str, *, allow_plain_http: bool = False) -> None:
    """Returns if requests may be sent to a service at this URL.

    Raises:
        InvalidInput: The URL is not an HTTP URL, or is plain `http` to another machine.
    """
    parts = parse_http_url(url, what="a service's URL")
    host = parts.hostname or ""
    if parts.scheme == "http" and not allow_plain_http and not _is_loopback(host):
        raise InvalidInput(
            f"plain http to {host} would let a party on the path read and change messages",
            hint="use https; or, inside an encrypted network, allow plain http in the settings",
            code="plain-http",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _content(body: BaseModel | bytes | None) -> tuple[bytes, dict[str, str]]:
    if isinstance(body, BaseModel):
        return body.model_dump_json().encode(), {"Content-Type": "application/json"}
    return (b"", {}) if body is None else (body, {"Content-Type": "application/octet-stream"})


async def _read(response: httpx.Response, limit: int) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise BadAnswer("the answer is compressed, although the request did not allow that")
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_bytes():
        size += len(piece)
        if size > limit:
            raise BadAnswer(f"the answer is larger than {limit} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _retry_after(text: str | None, *, now: datetime) -> timedelta | None:
    """Parses `Retry-After`: seconds or a date (RFC 9110, 10.2.3); None if it is neither."""
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) < 9:
        return timedelta(seconds=int(text))
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(timedelta(), (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now)
