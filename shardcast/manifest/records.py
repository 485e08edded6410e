"""Wire format of manifests: signed extensions in canonical JSON.

Each extension contains the hash of the previous extension.

A manifest is text with one extension per line:

    {"extension":{...},"signature":"0x..."}

Each line is canonical JSON: keys sorted, no spaces, ASCII. The hash of an extension is the SHA-256 of the canonical
bytes of the value of `extension`. The publisher signs (EIP-191) a text of seven lines: `muster-manifest-v1`, run,
version, attempt, sequence, hash of the previous extension (zeros in the first one) and hash of this extension.
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
"""Name of this wire format, the first line of the signed text."""

BLOCK = 1 << 20
"""Size of a block in bytes. Files are hashed, verified and sent in blocks; only the last block of a file may be
shorter. The value is part of the wire format."""

MOST_SHARD_BLOCKS = 1024
"""Largest number of blocks in one shard; their hashes are 64 KiB of text."""

MOST_FILE_BYTES = 1 << 41
"""Largest size of a file, 2 TiB. Larger sizes are refused before anything is allocated."""
MOST_VERSION_BYTES = 1 << 42
"""Largest size of a version, 4 TiB."""

MOST_EXTENSION_BYTES = 1 << 18
"""Largest size of a manifest line in bytes; checked before the line is parsed."""

MOST_VERSION = (1 << 53) - 1
"""Largest version number: the largest integer that every JSON parser represents exactly."""
MOST_ATTEMPT = (1 << 32) - 1
"""Largest number of an attempt."""

_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Hashes = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64}){1,1024}$", max_length=64 * MOST_SHARD_BLOCKS)]
_FileIndex = Annotated[int, Field(ge=0, lt=MOST_FILES)]
_Size = Annotated[int, Field(ge=0, le=MOST_FILE_BYTES)]
_Offset = Annotated[int, Field(ge=0, lt=MOST_FILE_BYTES, multiple_of=BLOCK)]


class DeltaBase(SignedModel):
    """Reference to the base: the version to which the deltas of another version are applied."""

    version: int = Field(ge=0, le=MOST_VERSION)
    attempt: int = Field(ge=1, le=MOST_ATTEMPT)
    digest: WireDigest


class Opening(SignedModel):
    """Opening record of a manifest: facts known before the version's first byte."""

    base: DeltaBase | None = None
    """The version that the deltas are applied to; None for a version without deltas."""


class FileEntry(SignedModel):
    """Declaration of a file.

    The file's index is the position of this record among all declarations of the manifest.
    """

    path: str = Field(max_length=LONGEST_NAME)
    kind: Literal["full", "delta"] = "full"
    """`full` for a whole file. `delta` for bytes that, applied to the base's file, produce the file at `path`."""
    expected: _Size | None = None
    """Final size in bytes, if the publisher knows it beforehand; readers then reserve the disk space at once."""


class Shard(SignedModel):
    """Announcement of further bytes of a file, directly after the bytes of its previous shard."""

    file: _FileIndex
    """Index of the file."""
    offset: _Offset
    """Offset of the first byte in the file, a multiple of the block size."""
    size: int = Field(ge=1, le=MOST_SHARD_BLOCKS * BLOCK)
    """Number of bytes."""
    blocks: _Hashes
    """BLAKE3 hashes of the blocks, 64 hex digits each, concatenated."""

    @model_validator(mode="after")
    def _as_many_hashes_as_blocks(self) -> Self:
        if len(self.blocks) != 64 * -(-self.size // BLOCK):
            raise ValueError("a shard has one hash for each block")
        return self


class Whole(SignedModel):
    """Size and hash of the file that a delta produces."""

    size: _Size
    """Size of the file in bytes."""
    sha256: _Sha256
    """SHA-256 of the file."""


class FileEnd(SignedModel):
    """End record of a file: the manifest announces no further bytes of this file."""

    file: _FileIndex
    """Index of the file."""
    size: _Size
    """Size of the file in bytes."""
    sha256: _Sha256
    """SHA-256 of the file's bytes; for a delta, the SHA-256 of the delta itself, not of the file that it produces."""
    whole: Whole | None = None
    """For a delta, the file that it produces; None for a full file."""


class Extension(SignedModel):
    """Next part of a manifest.

    It declares files, announces bytes and ends of files, or seals the version.
    """

    scheme: Literal["muster-manifest-v1"] = "muster-manifest-v1"
    run: WireDigest
    version: int = Field(ge=0, le=MOST_VERSION)
    attempt: int = Field(ge=1, le=MOST_ATTEMPT)
    sequence: int = Field(ge=0, lt=1 << 32)
    """Number of this extension in its manifest, from 0."""
    previous: WireDigest
    """Hash of the previous extension; zeros in the first one."""
    opening: Opening | None = None
    """Opening record; only the first extension has one."""
    files: tuple[FileEntry, ...] = Field((), max_length=MOST_FILES)
    shards: tuple[Shard, ...] = Field((), max_length=64)
    ended: tuple[FileEnd, ...] = Field((), max_length=MOST_FILES)
    digest: WireDigest | None = None
    """Version digest, which seals the manifest; only the last extension has one."""

    def canonical(self) -> bytes:
        """Returns the extension in canonical JSON, the bytes over which its hash is computed."""
        return canonical_json(self.model_dump(mode="json"))

    def digest_of_bytes(self) -> Digest:
        """Returns the hash of this extension, which the next extension contains as `previous`."""
        return digest(hashlib.sha256(self.canonical()).digest())


class SignedExtension(SignedModel):
    """One line of a manifest: an extension with its signature."""

    extension: Extension
    signature: str = Field(pattern=r"^0x[0-9a-f]{130}$")


def canonical_json(value: object) -> bytes:
    """Returns a JSON value in canonical form: keys sorted, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def signed_message(extension: Extension, hashed: Digest) -> bytes:
    """Returns the text of seven lines that the publisher signs for an extension.

    Args:
        extension: The extension.
        hashed: Hash of the extension.
    """
    e = extension
    lines = (SCHEME, e.run, str(e.version), str(e.attempt), str(e.sequence), e.previous, hashed)
    return "\n".join(lines).encode("ascii")


def sign_extension(extension: Extension, key: Key) -> bytes:
    """Signs an extension, and returns its manifest line with a line feed."""
    signature = key.sign_message(signed_message(extension, extension.digest_of_bytes()))
    line = {"extension": extension.model_dump(mode="json"), "signature": "0x" + signature.hex()}
    return canonical_json(line) + b"\n"


def read_extension(line: bytes, *, signers: Sequence[Address]) -> tuple[Extension, Digest, Address]:
    """Parses and verifies an untrusted manifest line.

    Returns the extension, its hash, and the address of its signer.

    Args:
        line: The line, with or without its line feed.
        signers: Addresses of the accepted signers, the publisher first.

    Raises:
        BadManifest: The line is too long, malformed, not canonical JSON, or signed by another key.
    """
    text = line.rstrip(b"\n")
    if len(text) > MOST_EXTENSION_BYTES:
        raise BadManifest(f"an extension has {len(text)} bytes, but at most {MOST_EXTENSION_BYTES} are allowed")
    try:
        signed = SignedExtension.model_validate_json(text)
    except ValidationError as error:
        places = ", ".join(".".join(map(str, item["loc"])) or "line" for item in error.errors()[:3])
        raise BadManifest(f"the line is not a valid manifest extension; invalid fields: {places}") from None
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
