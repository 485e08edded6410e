"""HTTP client of all services: deadlines, retries, size limits, typed errors, signatures."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
from pydantic import BaseModel, ValidationError

from protocol.errors import Conflict, InvalidInput, NotFound, RateLimited, Unauthenticated, Unavailable, plain_message
from protocol.http.location import ServiceLocation, check_service_url
from protocol.http.problems import error_of_answer
from protocol.http.trust import trust_of
from protocol.http.url_safety import directed_to
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.signing import NONCE_HEADER, check_response, sign_request
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.logs import get_logger
from protocol.runtime.retry import DEFAULT_BACKOFF, Backoff, Deadline, DeadlinePassed, is_retryable, retry
from protocol.versions import SPOKEN, VERSION_HEADER
from protocol.wire.base import parse_answer
from protocol.wire.identity import ServiceIdentity

Model = TypeVar("Model", bound=BaseModel)

ANSWER_LIMIT = 8 * 1024 * 1024
"""Default size limit of an answer, in bytes."""
IDENTITY_LIMIT = 4096
"""Size limit of the answer that names the service's address, in bytes."""
ATTEMPT_TIMEOUT = timedelta(seconds=10)
"""Default time limit of one attempt."""
CALL_TIMEOUT = timedelta(seconds=30)
"""Default time limit of a call with all its attempts and pauses."""

_MOST_ENDS = 16
"""Maximum number of announcements of deprecations that a client logs."""

_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Idempotent methods that the client repeats by default (RFC 9110, section 9.2.2)."""
_UNKNOWN = "unknown-"
"""Prefix of the codes of a 404 for a missing object, unlike a 404 for a wrong path or of a proxy."""

_PORTS = {"http": 80, "https": 443}

_log = get_logger(__name__)


class RequestSigner(httpx.Auth):
    """Signs each request to one service with a new nonce and the current time.

    Args:
        key: Key of the sender.
        audience: Address of the service.
        clock: Clock that gives the request's timestamp; the system's by default.
    """

    requires_request_body = True

    def __init__(self, key: Key, *, audience: Address, clock: Clock | None = None) -> None:
        self._key = key
        self.audience = audience
        self._clock = SystemClock() if clock is None else clock

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Adds the five signature headers for the request line and the body as httpx sends them."""
        stamp = sign_request(
            self._key,
            audience=self.audience,
            method=request.method,
            target=request.url.raw_path.decode("ascii").removesuffix("?"),
            body=request.content,
            at=self._clock.now(),
        )
        request.headers.update(stamp.headers())
        yield request

    def check(self, request: httpx.Request, *, status: int, headers: httpx.Headers, body: bytes) -> None:
        """Checks that the service signed this answer to this request.

        Raises:
            Unauthenticated: The signature is missing or wrong. The caller must discard the answer.
        """
        check_response(
            headers,
            service=self.audience,
            address=self._key.address,
            nonce=request.headers[NONCE_HEADER],
            status=status,
            body=body,
        )


class BearerToken(httpx.Auth):
    """Authenticates requests with a pool owner's token.

    The token itself is sent, so it must only be used over TLS or loopback.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Adds the `Authorization` header."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    def __repr__(self) -> str:
        return "BearerToken([redacted])"


class Unreachable(Unavailable):
    """The client could not connect, so the request was never sent."""

    code = "unreachable"


class NoAnswer(Unavailable):
    """The request was sent, but no complete answer arrived, so its outcome is unknown."""

    code = "no-answer"


class BadAnswer(Unavailable):
    """The answer does not conform to the service's API."""

    code = "bad-answer"
    retryable = False


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """A successful answer: its status is below 300.

    Its size is within the limit, and it is signed by the service if the caller asked for that.
    """

    status: int
    headers: httpx.Headers
    body: bytes

    def read(self, model: type[Model]) -> Model:
        """Parses the body as `model`; ignores fields that a newer service has added.

        Raises:
            BadAnswer: The body is not a valid `model`.
        """
        try:
            return parse_answer(model, self.body)
        except ValidationError as error:
            places = ", ".join(_field_problem(item["loc"], item["type"], item["msg"]) for item in error.errors()[:5])
            raise BadAnswer(
                f"the answer is not a valid {model.__name__}: {places}",
                hint="client and service may have different versions",
            ) from None


class _RetryPolicy:
    """Decides which errors of a call's attempts are worth another one."""

    def __init__(self, method: str, url: str, *, may_repeat: bool) -> None:
        self._method = method
        self._url = url
        self._may_repeat = may_repeat
        self._may_be_done = False

    def worth_another(self, error: BaseException) -> bool:
        if isinstance(error, NoAnswer) or (isinstance(error, Conflict) and error.code == "replayed"):
            # 409 for a replayed nonce: a proxy may have sent the request twice and the service served the first copy.
            return self._may_repeat and (error.retryable or isinstance(error, Conflict))
        return is_retryable(error)

    def tell(self, error: BaseException, wait: timedelta) -> None:
        self._may_be_done |= not isinstance(error, Unreachable | RateLimited)
        _log.info("retrying", url=self._url, error=str(error), wait_s=round(wait.total_seconds(), 2))

    def was_deleted(self, error: NotFound) -> bool:
        """Returns whether a DELETE found nothing because an earlier attempt may have been executed."""
        return self._method == "DELETE" and self._may_be_done and error.code.startswith(_UNKNOWN)


def _field_problem(place: tuple[int | str, ...], kind: str, message: str) -> str:
    """Returns the path of a faulty field in a body.

    If a validator of our models raised the error, its message follows.
    """
    words = ".".join(map(str, place)) or "body"
    return f"{words}: {plain_message(message)}" if kind == "value_error" else words


class ServiceClient:
    """Client of one service, with a key or a token.

    Signed requests name the service's address. If it is not pinned, the client trusts TLS: it requests the address from
    the service before the first request, and again if the service refuses the address, as after a rotation of its key.
    A changed address is logged as a warning. A client with a pinned address never accepts another one.

    Args:
        location: URL of the service (`https`, or `http` on this machine), followed by `#0x…` if its address is pinned.
        key: Signs every request.
        token: Token of a pool owner, instead of a key.
        clock: Clock of request times, deadlines and pauses; the system's by default.
        backoff: Number of attempts and the pauses between them.
        answer_limit: Size limit of an answer, in bytes.
        allow_plain_http: Whether `http` to other machines is allowed; only safe inside an encrypted network.
        tls: TLS context; by default, the client trusts the system's certificate authorities.
        destination: Function that returns the IP address to connect to for the URL's host and port. It is called for
            each attempt, and raises an error if the host must not be reached. By default the HTTP client resolves the
            name. Through a proxy of the environment it only checks the name, because the proxy resolves it.
        transport: Transport that replaces the network when tests run the service in the same process.

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
        backoff: Backoff = DEFAULT_BACKOFF,
        answer_limit: int = ANSWER_LIMIT,
        allow_plain_http: bool = False,
        tls: ssl.SSLContext | None = None,
        destination: Callable[[str, int], Awaitable[str]] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if isinstance(location, str):
            location = ServiceLocation.parse(location, allow_plain_http=allow_plain_http)
        check_service_url(location.url, allow_plain_http=allow_plain_http)
        if (key is None) == (token is None):
            raise InvalidInput(
                "a client authenticates with a key or with a token", hint="give the client either a key or a token"
            )
        self.location = location
        self._key = key
        self._token = None if token is None else BearerToken(token)
        self._signer: RequestSigner | None = None
        self._clock = SystemClock() if clock is None else clock
        self._backoff = backoff
        self._answer_limit = answer_limit
        self._destination = destination
        self._transport = transport
        self._ends_seen: set[tuple[str, str]] = set()
        # With a destination, the client decides itself whether it uses a proxy of the environment, because requests are
        # directed to checked addresses exactly if it does not.
        self._proxy = None if destination is None else _proxy_for(location.url)
        self._http = httpx.AsyncClient(
            transport=transport,
            verify=tls or trust_of(location.url),
            proxy=self._proxy,
            trust_env=destination is None,
            follow_redirects=False,
            headers={"Accept-Encoding": "identity", VERSION_HEADER: str(SPOKEN), "User-Agent": "muster"},
        )

    async def identity(self, *, call_timeout: timedelta = CALL_TIMEOUT) -> ServiceIdentity:
        """Asks the service for its address and contract; the request is not authenticated.

        Args:
            call_timeout: Time limit of all attempts.

        Raises:
            Unauthenticated: The address differs from the one that `location` pins.
        """
        answer = await self.call(
            "GET", "/v1/identity", anonymous=True, answer_limit=IDENTITY_LIMIT, call_timeout=call_timeout
        )
        identity = answer.read(ServiceIdentity)
        if self.location.address is not None and identity.address != self.location.address:
            raise Unauthenticated(
                f"{self.location.url} says it is {identity.address}, and {self.location.address} is expected",
                hint="check the URL; if the service's key was rotated, pin the new address",
                code="wrong-service",
            )
        return identity

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | Sequence[str]] | None = None,
        body: BaseModel | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        call_timeout: timedelta = CALL_TIMEOUT,
        attempt_timeout: timedelta = ATTEMPT_TIMEOUT,
        repeatable: bool | None = None,
        signed_answer: bool = False,
        anonymous: bool = False,
        answer_limit: int | None = None,
    ) -> ServiceResponse:
        """Sends a request; repeats it if that is safe and may help.

        The client tries again if it could not connect, or if the service answered with a retryable error. If the
        outcome is unknown, the client tries again only if `repeatable`. Each attempt has a new nonce and signature. A
        DELETE succeeds, with the status 204, if it finds nothing after an attempt with an unknown outcome.

        Args:
            method: HTTP method in capitals.
            path: Path below the service's URL, percent-encoded.
            query: Query parameters; one with a sequence is repeated for each element.
            body: Body of the request. A model is sent as JSON; bytes are sent unchanged.
            headers: Additional headers.
            call_timeout: Time limit of the whole call: the look-up of the service's address, all attempts, and the
                pauses between them.
            attempt_timeout: Time limit of one attempt.
            repeatable: Whether the request is idempotent. By default GET, HEAD, PUT and DELETE requests are.
            signed_answer: Whether the answer is accepted only if the service signed it. Use it if the caller acts on
                the answer.
            anonymous: Whether the request is sent without a signature and without the token.
            answer_limit: Size limit of this answer in bytes; by default the client's.

        Raises:
            MusterError: The error in the service's answer; `Unreachable`, `NoAnswer` or `BadAnswer`; or
                `Unauthenticated` if `signed_answer` is set and the answer is not signed.
        """
        if signed_answer and (self._key is None or anonymous):
            raise InvalidInput("services sign only answers to signed requests", hint="give the client a key")
        deadline = Deadline.after(call_timeout, clock=self._clock)
        auth = None if anonymous else await self._authentication(call_timeout=deadline.remaining)
        may_repeat = method in _REPEATABLE if repeatable is None else repeatable
        policy = _RetryPolicy(method, self.location.url + path, may_repeat=may_repeat)
        url = self.location.url + path + ("?" + urlencode(query, doseq=True) if query else "")
        content, kind = _content(body)
        limit = self._answer_limit if answer_limit is None else answer_limit

        async def attempt() -> ServiceResponse:
            request = self._http.build_request(
                method,
                url,
                content=content,
                headers={**kind, **(headers or {})},
                timeout=httpx.Timeout(min(attempt_timeout, deadline.remaining).total_seconds() or 0.001),
            )
            once = Deadline.after(min(attempt_timeout, deadline.remaining), clock=self._clock)
            try:
                return await once.bound(
                    self._attempt(request, auth, signed_answer=signed_answer, limit=limit), what=f"{method} {path}"
                )
            except DeadlinePassed as error:
                raise NoAnswer(f"{self.location.url}: {error.detail}", hint=error.hint) from error

        async def attempts() -> ServiceResponse:
            return await retry(
                attempt,
                clock=self._clock,
                backoff=self._backoff,
                deadline=deadline,
                when=policy.worth_another,
                on_retry=policy.tell,
            )

        try:
            return await attempts()
        except NotFound as error:
            if not policy.was_deleted(error):
                raise
            return ServiceResponse(204, httpx.Headers(), b"")
        except Unauthenticated as error:
            if error.code != "wrong-audience" or self.location.address is not None:
                raise
        auth = await self._authentication(refused=auth, call_timeout=deadline.remaining)
        return await attempts()

    @property
    def own_key(self) -> Key:
        """The key that signs the client's requests.

        Raises:
            InvalidInput: The client has a token instead of a key.
        """
        if self._key is None:
            raise InvalidInput("only a node's own key can do this", hint="give the client the key instead of a token")
        return self._key

    async def get(self, path: str, **options: Any) -> ServiceResponse:  # noqa: ANN401 - the options of `call`
        """Calls `call` with the method GET."""
        return await self.call("GET", path, **options)

    async def post(self, path: str, body: BaseModel | bytes | None = None, **options: Any) -> ServiceResponse:  # noqa: ANN401
        """Calls `call` with the method POST."""
        return await self.call("POST", path, body=body, **options)

    async def put(self, path: str, body: BaseModel | bytes | None = None, **options: Any) -> ServiceResponse:  # noqa: ANN401
        """Calls `call` with the method PUT."""
        return await self.call("PUT", path, body=body, **options)

    async def delete(self, path: str, **options: Any) -> ServiceResponse:  # noqa: ANN401
        """Calls `call` with the method DELETE."""
        return await self.call("DELETE", path, **options)

    async def aclose(self) -> None:
        """Closes the client's connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _authentication(
        self, refused: httpx.Auth | None = None, *, call_timeout: timedelta = CALL_TIMEOUT
    ) -> RequestSigner | BearerToken:
        """Returns the token, or a signer for the service's address.

        Args:
            refused: The authentication of a request whose audience the service refused: the address is read again,
                unless a concurrent call has done so.
            call_timeout: Time limit of reading the address.
        """
        if self._token is not None:
            return self._token
        if self._signer is None or self._signer is refused:
            before = self._signer
            audience = self.location.address or (await self.identity(call_timeout=call_timeout)).address
            if before is not None and before.audience != audience:
                _log.warning(
                    "service-address-changed",
                    url=self.location.url,
                    before=before.audience,
                    now=audience,
                    hint="if the operator did not rotate the service's key, stop; URL#ADDRESS pins an address",
                )
            self._signer = RequestSigner(self.own_key, audience=audience, clock=self._clock)
        return self._signer

    async def _attempt(
        self, request: httpx.Request, auth: RequestSigner | BearerToken | None, *, signed_answer: bool, limit: int
    ) -> ServiceResponse:
        where = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        if self._destination is not None:
            address = await self._destination(request.url.host, request.url.port or _PORTS[request.url.scheme])
            request = directed_to(request, address) if self._proxy is None else request
        try:
            response = await self._http.send(request, auth=auth, stream=True)
            try:
                body = await _read(response, limit)
            finally:
                await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unreachable(
                f"can't reach {where}: {type(error).__name__}",
                hint="check the URL, the network, and whether the service runs",
            ) from error
        except httpx.TransportError as error:
            raise NoAnswer(
                f"{where} did not answer: {type(error).__name__}", hint="the service may be down or slow; see its log"
            ) from error
        self._warn_of_end(request, response.headers)
        if 300 <= response.status_code < 400:
            raise BadAnswer(
                f"{where} answered with a redirect",
                hint="set the URL that the redirect leads to: redirects are not followed",
            )
        if response.status_code >= 400:
            raise error_of_answer(
                response.status_code,
                response.headers.get("content-type", ""),
                body,
                retry_after=_retry_after(response.headers.get("retry-after"), now=self._clock.now()),
            )
        if signed_answer and isinstance(auth, RequestSigner):
            auth.check(response.request, status=response.status_code, headers=response.headers, body=body)
        return ServiceResponse(response.status_code, response.headers, body)

    def _warn_of_end(self, request: httpx.Request, headers: httpx.Headers) -> None:
        """Logs once per announcement that the service will end a route or protocol version."""
        since, sunset = headers.get("deprecation"), headers.get("sunset", "")
        if since is None or (since, sunset) in self._ends_seen or len(self._ends_seen) >= _MOST_ENDS:
            return
        self._ends_seen.add((since, sunset))
        _log.warning(
            "deprecated",
            url=self.location.url,
            path=request.url.path[:200],
            since=since[:40],
            sunset=sunset[:40],
            link=headers.get("link", "")[:200],
            hint="upgrade before the sunset: muster worker upgrade",
        )


def _proxy_for(url: str) -> str | None:
    """Returns the environment's proxy for a URL; None if there is none, or `NO_PROXY` names the host."""
    parts, proxies = urlsplit(url), getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    if not found or proxy_bypass(parts.hostname or ""):
        return None
    return found if "://" in found else f"http://{found}"


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
    """Parses the header `Retry-After`: seconds or a date (RFC 9110, section 10.2.3).

    Returns None if it is neither.
    """
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) < 9:
        return timedelta(seconds=int(text))
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(timedelta(), (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now)
