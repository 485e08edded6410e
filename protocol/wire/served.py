"""A gateway's signed list of the requests that a slot answered.

A served slot is leased like any other slot, but its prompts come from a gateway's clients and not from the slot's seed.
The gateway signs the list when the slot ends. The node writes list and signature into its rollout file, so that
validators compare the file with what clients asked for and what they got.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from protocol.enumerations import WireEnum
from protocol.errors import InvalidInput
from protocol.identifiers import Address, Digest, WireDigest, digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import ServedSlot
from protocol.wire.base import Identifier, SignedModel
from protocol.wire.leases import Signature

MOST_SERVED = 4096
"""Maximum number of requests in a slot."""
MOST_LIST_BYTES = 8 << 20
"""Maximum size of a slot's list in bytes."""
MOST_BODY_BYTES = 1 << 20
"""Maximum size of one request's body in bytes."""

_ANSWER_TAG = b"muster-served-answer-v1"


class RequestKind(WireEnum):
    """Route that a client called."""

    COMPLETION = "completion"
    CHAT = "chat"
    GENERATE = "generate"


class ServedRequest(SignedModel):
    """One answered request of a slot. Its choices are consecutive rows of the rollout file."""

    id: Identifier
    kind: RequestKind
    body: Annotated[str, Field(max_length=MOST_BODY_BYTES)]
    """JSON body that the client sent."""
    seed: WireDigest
    """Seed of the answer, chosen by the gateway, or derived from the client's number."""
    choices: Annotated[int, Field(ge=1, le=MOST_SERVED)]
    answer: WireDigest
    """`answer_digest` of what the client got."""


class ServedList(SignedModel):
    """The requests that a slot answered, in the order of the file's rows."""

    format: Literal[1] = 1
    requests: Annotated[tuple[ServedRequest, ...], Field(max_length=MOST_SERVED)]

    def encode(self) -> bytes:
        """Returns the bytes that are hashed and signed."""
        return self.model_dump_json().encode()


class SignedServedList(SignedModel):
    """A list with the gateway's signature, as the gateway sends it and rollout files contain it."""

    content: Annotated[str, Field(max_length=MOST_LIST_BYTES)]
    """JSON of a `ServedList`. The signature covers exactly these characters in UTF-8."""
    signature: Signature

    @classmethod
    def sign(cls, served: ServedList, *, work_key: Digest, key: Key, domain: SigningDomain) -> SignedServedList:
        """Signs a list.

        Args:
            served: The list.
            work_key: Key of the slot's work; see `WorkKey.hash`.
            key: The gateway's key.
            domain: EIP-712 domain of the `WorkLedger` contract, as for leases.
        """
        content = served.encode()
        statement = ServedSlot(key=work_key, list_hash=digest(hashlib.sha256(content).digest()))
        return cls(content=content.decode(), signature="0x" + statement.sign(key, domain).hex())

    def signer(self, *, work_key: Digest, domain: SigningDomain) -> Address:
        """Returns the address that signed the list for this work.

        Raises:
            InvalidInput: The signature is malformed.
        """
        statement = ServedSlot(key=work_key, list_hash=digest(hashlib.sha256(self.content.encode()).digest()))
        return statement.signer(bytes.fromhex(self.signature[2:]), domain)

    def parse(self) -> ServedList:
        """Returns the list.

        Raises:
            InvalidInput: The content is not a valid list.
        """
        try:
            return ServedList.model_validate_json(self.content)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            path = ".".join(str(part) for part in first["loc"])
            raise InvalidInput(f"the list of served requests is invalid: {path[:100]}: {first['msg']}") from None


def answer_digest(choices: Sequence[tuple[str, Sequence[int]]]) -> Digest:
    """Returns the digest of an answer: what the client saw of each choice.

    Args:
        choices: Text and token ids of each choice, by index. The text is empty for requests of tokens.

    Returns:
        SHA-256 of `muster-served-answer-v1` and the JSON `[[text, [token, …]], …]` without spaces, in UTF-8, with
        characters outside ASCII unescaped.
    """
    value = [[text, list(tokens)] for text, tokens in choices]
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return digest(hashlib.sha256(_ANSWER_TAG + content.encode("utf-8", "surrogatepass")).digest())
