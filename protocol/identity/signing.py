"""Signs and verifies HTTP requests and answers, and defines the bytes that are signed.

The signature of a request covers seven lines of text as an EIP-191 personal message; that of an answer covers five.
`docs/protocol.md` specifies the lines, with a test vector for clients in other languages.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from protocol.errors import InvalidInput, Unauthenticated
from protocol.identifiers import Address, address
from protocol.identity import secp256k1
from protocol.identity.keys import Key
from protocol.runtime.randomness import token_hex

REQUEST_SCHEME = "muster-request-v1"
RESPONSE_SCHEME = "muster-response-v1"

ADDRESS_HEADER = "X-Muster-Address"
AUDIENCE_HEADER = "X-Muster-Audience"
TIMESTAMP_HEADER = "X-Muster-Timestamp"
NONCE_HEADER = "X-Muster-Nonce"
SIGNATURE_HEADER = "X-Muster-Signature"
REQUEST_HEADERS = (ADDRESS_HEADER, AUDIENCE_HEADER, TIMESTAMP_HEADER, NONCE_HEADER, SIGNATURE_HEADER)

MOST_TARGET_CHARACTERS = 8192
"""Maximum length of path and query together, in characters: the size of nginx's default header buffers."""

_METHOD = re.compile(r"[A-Z]{3,10}")
_TARGET = re.compile(r"/[\x21-\x7e]*")
_TIMESTAMP = re.compile(r"[1-9][0-9]{11,14}")
_NONCE = re.compile(r"[0-9a-f]{32}")
_SIGNATURE = re.compile(r"0x[0-9a-f]{130}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStamp:
    """Parsed headers of a signed request in canonical form; not yet verified."""

    address: Address
    audience: Address
    timestamp_ms: int
    nonce: str
    signature: bytes

    def headers(self) -> dict[str, str]:
        """Returns the five signature headers."""
        return {
            ADDRESS_HEADER: self.address,
            AUDIENCE_HEADER: self.audience,
            TIMESTAMP_HEADER: str(self.timestamp_ms),
            NONCE_HEADER: self.nonce,
            SIGNATURE_HEADER: "0x" + self.signature.hex(),
        }


def request_message(
    *, audience: Address, method: str, target: str, body_sha256: str, timestamp_ms: int, nonce: str
) -> bytes:
    """Returns the seven lines that the signature of a request covers.

    Args:
        audience: Address of the service for which the request is meant.
        method: HTTP method in capitals.
        target: Path with query exactly as sent; an empty query has no question mark.
        body_sha256: SHA-256 of the body, in lower-case hex; the body may be empty.
        timestamp_ms: Unix time in milliseconds.
        nonce: 32 lower-case hex digits, never used before.
    """
    lines = (REQUEST_SCHEME, audience, method, target, body_sha256, str(timestamp_ms), nonce)
    return "\n".join(lines).encode("ascii")


def response_message(*, address: Address, nonce: str, status: int, body_sha256: str) -> bytes:
    """Returns the five lines that the signature of an answer covers.

    They are the scheme, the requester's address, the request's nonce, the status and the hash of the body.

    The requester's address is included, because clients choose nonces. Otherwise an attacker between client and service
    could send the same nonce under its own address and forward the answer to the client.
    """
    return "\n".join((RESPONSE_SCHEME, address, nonce, str(status), body_sha256)).encode("ascii")


def sign_request(
    key: Key,
    *,
    audience: Address,
    method: str,
    target: str,
    body: bytes = b"",
    at: datetime,
    nonce: str | None = None,
) -> RequestStamp:
    """Signs a request.

    Args:
        key: Key of the sender.
        audience: Address of the recipient.
        method: HTTP method in capitals.
        target: Path with query exactly as it will be sent.
        body: The bytes of the body exactly as they will be sent.
        at: Current time, which becomes the request's timestamp.
        nonce: 32 lower-case hex digits; random by default. Only tests pass one.

    Raises:
        InvalidInput: The method or the target can't be signed; see `check_request_line`.
    """
    check_request_line(method, target)
    nonce = token_hex(16) if nonce is None else nonce
    timestamp_ms = unix_ms(at)
    message = request_message(
        audience=audience,
        method=method,
        target=target,
        body_sha256=hashlib.sha256(body).hexdigest(),
        timestamp_ms=timestamp_ms,
        nonce=nonce,
    )
    return RequestStamp(
        address=key.address,
        audience=audience,
        timestamp_ms=timestamp_ms,
        nonce=nonce,
        signature=key.sign_message(message),
    )


def sign_response(key: Key, *, address: Address, nonce: str, status: int, body: bytes) -> dict[str, str]:
    """Signs an answer; returns the headers with the service's address and the signature."""
    message = response_message(
        address=address, nonce=nonce, status=status, body_sha256=hashlib.sha256(body).hexdigest()
    )
    return {ADDRESS_HEADER: key.address, SIGNATURE_HEADER: "0x" + key.sign_message(message).hex()}


def check_response(
    headers: Mapping[str, str], *, service: Address, address: Address, nonce: str, status: int, body: bytes
) -> None:
    """Checks that `service` signed the answer to this request.

    The signature covers the requester's address and the request's nonce, so an answer to another request fails.

    Raises:
        Unauthenticated: The signature is missing or wrong; the caller must discard the answer.
    """
    text = headers.get(SIGNATURE_HEADER, "")
    if not _SIGNATURE.fullmatch(text):
        raise Unauthenticated(
            f"the answer has no signature of {service}",
            hint="a proxy may have changed the answer, or another server answered: check the service's URL",
            code="unsigned-answer",
        )
    message = response_message(
        address=address, nonce=nonce, status=status, body_sha256=hashlib.sha256(body).hexdigest()
    )
    try:
        signer = secp256k1.recover(secp256k1.personal_hash(message), bytes.fromhex(text[2:]))
    except InvalidInput as error:
        raise Unauthenticated(
            f"the answer's signature is broken: {error.detail}",
            hint="check the service's URL and address: another program may answer there",
            code="forged-answer",
        ) from error
    if signer != service:
        raise Unauthenticated(
            f"the answer was not signed by {service}",
            hint="a proxy may have changed the answer, or the service has a new key: read its address again from the "
            "ledger",
            code="forged-answer",
        )


def read_stamp(headers: Mapping[str, str]) -> RequestStamp:
    """Parses the five signature headers of a request, each in its canonical form.

    Raises:
        Unauthenticated: A header is missing.
        InvalidInput: A header is not in canonical form.
    """
    values = []
    for name in REQUEST_HEADERS:
        value = headers.get(name)
        if value is None:
            raise Unauthenticated(
                f"the request has no {name} header",
                hint="sign the request as docs/protocol.md describes, or use a Muster client",
                code="unsigned",
            )
        values.append(value)
    signer, audience, timestamp, nonce, signature = values
    return RequestStamp(
        address=_canonical_address(ADDRESS_HEADER, signer),
        audience=_canonical_address(AUDIENCE_HEADER, audience),
        timestamp_ms=int(_matching(_TIMESTAMP, TIMESTAMP_HEADER, timestamp, "Unix time in milliseconds")),
        nonce=_matching(_NONCE, NONCE_HEADER, nonce, "32 lower-case hex digits"),
        signature=bytes.fromhex(
            _matching(_SIGNATURE, SIGNATURE_HEADER, signature, "0x and 130 lower-case hex digits")[2:]
        ),
    )


def check_signature(stamp: RequestStamp, *, method: str, target: str, body_sha256: str) -> None:
    """Checks that the address in the stamp signed exactly this request.

    Raises:
        Unauthenticated: The signature is malformed, or the address did not sign this request with it.
    """
    message = request_message(
        audience=stamp.audience,
        method=method,
        target=target,
        body_sha256=body_sha256,
        timestamp_ms=stamp.timestamp_ms,
        nonce=stamp.nonce,
    )
    try:
        signer = secp256k1.recover(secp256k1.personal_hash(message), stamp.signature)
    except InvalidInput as error:
        raise Unauthenticated(error.detail, hint=error.hint, code="bad-signature") from error
    if signer != stamp.address:
        raise Unauthenticated(
            f"{stamp.address} did not sign this request",
            hint="sign method, path with query, and body exactly as they are sent; a proxy must not change them",
            code="bad-signature",
        )


def check_request_line(method: str, target: str) -> None:
    """Checks that method and target are well-formed, so that each is exactly one line of the signed message.

    Raises:
        InvalidInput: The method is not 3 to 10 capitals; or the target does not begin with a slash, is longer than
            8,192 characters, or contains other characters than printable ASCII.
    """
    if not _METHOD.fullmatch(method):
        raise InvalidInput(
            f"{method[:20]!r} is not an HTTP method of 3 to 10 capitals", hint="write methods in capitals, such as GET"
        )
    if len(target) > MOST_TARGET_CHARACTERS or not _TARGET.fullmatch(target):
        raise InvalidInput(
            f"{target[:80]!r} is not a valid path with query",
            hint="percent-encode it; it begins with a slash and has at most 8,192 characters",
        )


def unix_ms(moment: datetime) -> int:
    """Returns Unix time in whole milliseconds, rounded down."""
    return int(moment.timestamp() * 1000)


def _matching(pattern: re.Pattern[str], name: str, value: str, form: str) -> str:
    if not pattern.fullmatch(value):
        raise InvalidInput(
            f"{name} is not {form}: {value[:40]!r}",
            hint="docs/protocol.md has the form of each signature header",
            code="malformed-header",
        )
    return value


def _canonical_address(name: str, value: str) -> Address:
    """Returns the address in a header; accepts only its checksummed spelling.

    With several spellings, one signer would have several entries in rate limits, nonces and bans.
    """
    try:
        canonical = _known_address(value) if len(value) == 42 else address(value)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error.detail}", hint=error.hint, code="malformed-header") from error
    if canonical != value:
        raise InvalidInput(
            f"{name} is not in checksummed form", hint=f"write it as {canonical} (EIP-55)", code="malformed-header"
        )
    return canonical


@lru_cache(maxsize=65_536)
def _known_address(value: str) -> Address:
    return address(value)
