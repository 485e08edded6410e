"""Wire format of manifests: extensions in canonical JSON, chained by hash and signed.

One extension is one line:

    {"extension":{...},"signature":"0x..."}

in canonical JSON: keys sorted, no spaces, ASCII. Its hash is SHA-256 of the canonical bytes of `extension` alone. The
publisher signs (EIP-191) seven lines: `muster-manifest-v1`, run, version, attempt, sequence, hash of the extension
before (zeros for the first) and hash of this one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from protocol.checkpoints import LONGEST_NAME, MOST_FILES
from protocol.errors import InvalidInput
from protocol.identifiers import Address, Digest, WireDigest, digest
from protocol.identity import secp256k1
from protocol.identity.keys import Key
from protocol.wire.base import SignedModel
from shardcast.errors import BadManifest

SCHEME = "muster-manifest-v1"

BLOCK = 1 << 20
"""Bytes of a block: the unit of hashing, verification and forwarding. Only the last block of a file is shorter. The
value is part of the wire format."""

MOST_SHARD_BLOCKS = 1024
"""Blocks that one shard of an extension may add: their hashes are 64 KiB of text."""

MOST_FILE_BYTES = 1 << 41
MOST_VERSION_BYTES = 1 << 42
"""2 TiB per file, 4 TiB per version. Larger sizes are refused before anything is allocated."""

MOST_EXTENSION_BYTES = 1 << 18
"""Bytes of one line; checked before the line is parsed."""

MOST_VERSION = (1 << 53) - 1
"""The largest integer that every JSON parser represents exactly."""
MOST_ATTEMPT = (1 << 32) - 1

_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Hashes = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64}){1,1024}$", max_length=64 * MOST_SHARD_BLOCKS)]
_FileIndex = Annotated[int, Field(ge=0, lt=MOST_FILES)]
_Size = Annotated[int, Field(ge=0, le=MOST_FILE_BYTES)]
_Offset = Annotated[int, Field(ge=0, lt=MOST_FILE_BYTES, multiple_of=BLOCK)]


class DeltaBase(SignedModel):
    """The version that deltas of this one are applied to."""

    version: int = Field(ge=0, le=MOST_VERSION)
    attempt: int = Field(ge=1, le=MOST_ATTEMPT)
    digest: WireDigest


class Opening(SignedModel):
    """Opening record: facts known before a version's first byte."""

    base: DeltaBase | None = None


class FileEntry(SignedModel):
    """Declaration of a file. Its index is its position among all declarations of the manifest."""

    path: str = Field(max_length=LONGEST_NAME)
    kind: Literal["full", "delta"] = "full"
    """`delta`: the bytes are a delta; applied to the base's file it produces the file at `path`."""
    expected: _Size | None = None
    """Final size in bytes, if known before the file is written; lets a reader reserve the room at once."""


class Shard(SignedModel):
    """Announcement of further bytes of a file, directly after those of its previous shard."""

    file: _FileIndex
    offset: _Offset
    size: int = Field(ge=1, le=MOST_SHARD_BLOCKS * BLOCK)
    blocks: _Hashes
    """BLAKE3 of each block, 64 hex digits each, concatenated."""

    @model_validator(mode="after")
    def _as_many_hashes_as_blocks(self) -> Self:
        if len(self.blocks) != 64 * -(-self.size // BLOCK):
            raise ValueError("a shard has one hash for each block")
        return self


class Whole(SignedModel):
    """File that a delta produces."""

    size: _Size
    sha256: _Sha256


class FileEnd(SignedModel):
    """End record of a file."""

    file: _FileIndex
    size: _Size
    sha256: _Sha256
    """SHA-256 of the announced bytes: of the delta, if the file is one."""
    whole: Whole | None = None
    """For a delta: the file that it produces. None for a full file."""


class Extension(SignedModel):
    """Next part of a manifest: new files, new bytes of files, ends of files, or the seal."""

    scheme: Literal["muster-manifest-v1"] = "muster-manifest-v1"
    run: WireDigest
    version: int = Field(ge=0, le=MOST_VERSION)
    attempt: int = Field(ge=1, le=MOST_ATTEMPT)
    sequence: int = Field(ge=0, lt=1 << 32)
    previous: WireDigest
    """Hash of the previous extension; zeros in the first."""
    opening: Opening | None = None
    """In the first extension only."""
    files: tuple[FileEntry, ...] = Field((), max_length=MOST_FILES)
    shards: tuple[Shard, ...] = Field((), max_length=64)
    ended: tuple[FileEnd, ...] = Field((), max_length=MOST_FILES)
    digest: WireDigest | None = None
    """Version digest, which seals the manifest; in the last extension only."""

    def canonical(self) -> bytes:
        """Returns the canonical bytes, which are hashed."""
        return canonical_json(self.model_dump(mode="json"))

    def digest_of_bytes(self) -> Digest:
        """Returns the hash that the next extension names as `previous`."""
        return digest(hashlib.sha256(self.canonical()).digest())


class SignedExtension(SignedModel):
    """One line of a manifest."""

    extension: Extension
    signature: str = Field(pattern=r"^0x[0-9a-f]{130}$")


def canonical_json(value: object) -> bytes:
    """Returns a JSON value in canonical form: keys sorted, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def signed_message(extension: Extension, hashed: Digest) -> bytes:
    """Returns the signed message of an extension: seven lines."""
    e = extension
    lines = (SCHEME, e.run, str(e.version), str(e.attempt), str(e.sequence), e.previous, hashed)
    return "\n".join(lines).encode("ascii")


def sign_extension(extension: Extension, key: Key) -> bytes:
    """Returns the line, with its line feed."""
    signature = key.sign_message(signed_message(extension, extension.digest_of_bytes()))
    line = {"extension": extension.model_dump(mode="json"), "signature": "0x" + signature.hex()}
    return canonical_json(line) + b"\n"


def read_extension(line: bytes, *, signers: Sequence[Address]) -> tuple[Extension, Digest, Address]:
    """Parses and verifies an untrusted line; returns the extension, its hash, and its signer.

    Args:
        line: The line, with or without its line feed.
        signers: Accepted signers, the publisher first.

    Raises:
        BadManifest: The line is too long, malformed, not canonical, or signed by another key.
    """
    text = line.rstrip(b"\n")
    if len(text) > MOST_EXTENSION_BYTES:
        raise BadManifest(f"an extension has {len(text)} bytes, and at most {MOST_EXTENSION_BYTES} are allowed")
    try:
        signed = SignedExtension.model_validate_json(text)
    except ValidationError as error:
        places = ", ".join(".".join(map(str, item["loc"])) or "line" for item in error.errors()[:3])
        raise BadManifest(f"the line is not an extension of a manifest: {places}") from None
    if canonical_json(signed.model_dump(mode="json")) != text:
        raise BadManifest("an extension is not in canonical JSON")
    hashed = signed.extension.digest_of_bytes()
    try:
        found = secp256k1.recover(
            secp256k1.personal_hash(signed_message(signed.extension, hashed)), bytes.fromhex(signed.signature[2:])
        )
    except InvalidInput as error:
        raise BadManifest(f"an extension's signature is invalid: {error.detail}") from None
    if found not in signers:
        raise BadManifest(
            f"an extension of version {signed.extension.version} was signed by {found}, "
            f"not by the publisher {signers[0]}",
            code="wrong-signer",
        )
    return signed.extension, hashed, found
