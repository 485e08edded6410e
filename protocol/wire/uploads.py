"""Wire models of transfers to and from a pool's object store: requests and signed URLs.

POST /v1/uploads          UploadRequest -> UploadTicket    signed by a node, or by a validator for its audit files
GET  /v1/objects?key=...  ObjectLink                       for callers that may read the object
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from protocol.enumerations import WireEnum
from protocol.errors import InvalidInput
from protocol.identifiers import EXAMPLE_ADDRESS, EXAMPLE_DIGEST, Address, Digest, WireDigest, address, digest
from protocol.wire.base import MAX_INT64, Identifier, Milliseconds, WireModel
from protocol.wire.slots import SlotName

MOST_URL = 8192
"""Maximum length of a presigned URL, in characters. URLs of S3 have about 500."""

MOST_HEADERS = 16
"""Maximum number of headers in an upload ticket."""

LARGEST_OBJECT = 5 << 30
"""Maximum size of an object that a pool's store may accept, in bytes; the limit of S3 for one PUT.

Validators hash files up to this size. A store that accepted larger ones would let nodes submit files that no validator
can judge.
"""

_KEY = re.compile(r"([1-9][0-9]{0,18})/(audits/)?(0x[0-9a-fA-F]{40})/([0-9a-f]{64})")

MediaType = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]{0,62}/[a-z0-9][a-z0-9.+-]{0,62}$", max_length=127)
]
"""A media type without parameters, in lower case."""


class UploadKind(WireEnum):
    """Kind of an uploaded file."""

    ROLLOUT = "rollout"
    """A rollout file: work, which is submitted to the ledger by its hash."""
    FILE = "file"
    """Any other file of a task."""
    AUDIT = "audit"
    """Audit file of a verdict. It is public, and the ledger stores its hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKey:
    """Name of an object in the store: its owner and the hash of its content.

    Two different objects therefore never have the same name, and no upload can overwrite another object.

    The text is `POOL/OWNER/SHA256`, or `POOL/audits/OWNER/SHA256` for audit files.

    Args:
        pool_id: Number of the pool on the ledger.
        owner: Address of the node or validator that uploads the object.
        sha256: SHA-256 of the object.
        audit: Whether the object is a validator's audit file.
    """

    pool_id: int
    owner: Address
    sha256: Digest
    audit: bool = False

    def __str__(self) -> str:
        return f"{self.pool_id}/{'audits/' if self.audit else ''}{self.owner}/{self.sha256[2:]}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text of a key.

        Raises:
            InvalidInput: The text is malformed, or its address is not in checksummed form.
        """
        match = _KEY.fullmatch(text)
        owner = address(match[3].lower()) if match is not None else None
        if match is None or owner is None or owner != match[3] or int(match[1]) > MAX_INT64:
            raise InvalidInput(
                f"{text[:200]!r} is not an object's key",
                hint="a key has the form POOL/OWNER/SHA256, see docs/protocol.md",
            )
        return cls(pool_id=int(match[1]), owner=owner, sha256=digest("0x" + match[4]), audit=match[2] is not None)


def _object_key(text: str) -> str:
    try:
        return str(ObjectKey.parse(text))
    except InvalidInput as error:
        raise ValueError(error.detail) from error


EXAMPLE_KEY = f"7/{EXAMPLE_ADDRESS}/{'c3' * 32}"
"""Example for the OpenAPI documents."""

WireObjectKey = Annotated[str, AfterValidator(_object_key), Field(examples=[EXAMPLE_KEY])]
"""Canonical text of an `ObjectKey`."""


class UploadRequest(WireModel):
    """A request for the URL to upload a file, which will belong to the signer."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"kind": "rollout", "sha256": EXAMPLE_DIGEST, "size": 8000, "slot": {"step": 3, "index": 0}},
            ]
        }
    )

    kind: UploadKind = UploadKind.ROLLOUT
    sha256: WireDigest
    size: Annotated[int, Field(ge=1, le=MAX_INT64)]
    """Size of the file in bytes."""
    content_type: MediaType = "application/octet-stream"
    task_id: Identifier | None = None
    """Task that produced the file, if any."""
    slot: SlotName | None = None
    """Slot of the work, only for kind `rollout`. The node needs a live lease for it."""

    @model_validator(mode="after")
    def _names_a_slot_if_it_is_work(self) -> Self:
        if (self.kind is UploadKind.ROLLOUT) != (self.slot is not None):
            raise ValueError("a slot is required for kind rollout, and not allowed for other kinds")
        return self


class UploadTicket(WireModel):
    """URL to upload a file, or the fact that the object exists already.

    The orchestrator signs it.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "key": EXAMPLE_KEY,
                    "already_there": False,
                    "url": f"https://pool.example/v1/blobs/{EXAMPLE_KEY}?expires=1767226500000&size=8000&signature=5d41",
                    "headers": {"content-type": "application/octet-stream"},
                    "expires_ms": 1_767_226_500_000,
                }
            ]
        }
    )

    key: WireObjectKey
    already_there: bool
    """Whether the object exists with these bytes, so that nothing has to be sent."""
    url: Annotated[str, Field(max_length=MOST_URL)] = ""
    """URL for one PUT of exactly the announced bytes; empty if the object exists already."""
    headers: Annotated[
        dict[
            Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")],
            Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]*$", max_length=1024)],
        ],
        Field(max_length=MOST_HEADERS),
    ] = {}
    """Headers that must be sent unchanged with the PUT, because the URL's signature covers them."""
    expires_ms: Milliseconds = 0
    """Time at which the URL expires. After it, the client must request another one."""

    @model_validator(mode="after")
    def _has_a_url_or_needs_none(self) -> Self:
        if self.already_there == bool(self.url):
            raise ValueError("a ticket needs a URL unless the object exists already")
        return self


class ObjectLink(WireModel):
    """Temporary URL to download an object.

    The client must check the SHA-256 in the key, because the store is not trusted.
    """

    key: WireObjectKey
    size: Annotated[int, Field(ge=0, le=MAX_INT64)]
    url: Annotated[str, Field(max_length=MOST_URL)]
    expires_ms: Milliseconds
