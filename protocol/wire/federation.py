"""Node records as discovery services pass them to each other: the requests that the nodes signed."""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from protocol.identifiers import Address, WireAddress
from protocol.identity.signing import RequestStamp, check_signature
from protocol.wire.base import Milliseconds, SignedModel, WireModel

MOST_STATEMENTS = 100
"""Maximum number of statements of one page."""
MOST_BODY_BYTES = 24 * 1024
"""Maximum length of a registration's body as UTF-8: a service accepts no larger one from a node."""


def _bounded(body: str) -> str:
    if len(body.encode()) > MOST_BODY_BYTES:
        raise ValueError(f"longer than {MOST_BODY_BYTES} bytes")
    return body


class NodeStatement(SignedModel):
    """A registration or removal, as the node signed it in its request to a discovery service.

    Any service can check the signature, because it covers all members (see `request_message`).
    """

    node: WireAddress
    audience: WireAddress
    """Address of the service to which the node sent the request."""
    timestamp_ms: Milliseconds
    nonce: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$"), Field(examples=["0" * 32])]
    signature: Annotated[
        str, StringConstraints(pattern=r"^0x[0-9a-f]{130}$"), Field(examples=["0x" + "11" * 64 + "1b"])
    ]
    body: Annotated[str, StringConstraints(max_length=MOST_BODY_BYTES), AfterValidator(_bounded)] | None
    """Body of the request `PUT /v1/nodes/{node}`; None for `DELETE /v1/nodes/{node}`."""

    def check(self) -> None:
        """Checks that the node signed this request.

        Raises:
            Unauthenticated: It did not.
        """
        stamp = RequestStamp(
            address=self.node,
            audience=self.audience,
            timestamp_ms=self.timestamp_ms,
            nonce=self.nonce,
            signature=bytes.fromhex(self.signature[2:]),
        )
        body = b"" if self.body is None else self.body.encode()
        check_signature(
            stamp,
            method="DELETE" if self.body is None else "PUT",
            target=node_target(self.node),
            body_sha256=hashlib.sha256(body).hexdigest(),
        )

    @property
    def order(self) -> tuple[int, bool, str]:
        """Sort key: the newest statement of a node has the highest one. Different statements have different keys."""
        return self.timestamp_ms, self.body is None, self.signature


class NodeStatementPage(WireModel):
    """Answer of `GET /v1/federation/statements`: statements in ascending order of their nodes' addresses."""

    statements: Annotated[tuple[NodeStatement, ...], Field(max_length=MOST_STATEMENTS)]
    next_cursor: str | None


def node_target(node: Address) -> str:
    """Returns the path of a node's record, as it must be signed for other services to accept the statement."""
    return f"/v1/nodes/{node}"
