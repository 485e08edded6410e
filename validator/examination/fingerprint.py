"""Fingerprint of all outputs of a rollout file, independent of the order of rows and the Parquet encoding."""

from __future__ import annotations

import hashlib

from protocol.identifiers import Digest, digest
from rollouts.files.samples import RolloutFile, Sample

_TAG = b"muster-outputs-v1"


def fingerprint(file: RolloutFile) -> Digest:
    """Returns the SHA-256 over the sorted hashes of (prompt index, target length, output tokens) of all rows."""
    return digest(hashlib.sha256(_TAG + b"".join(sorted(map(_row, file.samples)))).digest())


def _row(sample: Sample) -> bytes:
    target = -1 if sample.target_length is None else sample.target_length
    head = sample.prompt_index.to_bytes(8, "big") + target.to_bytes(8, "big", signed=True)
    return hashlib.sha256(head + sample.output_tokens.astype(">i4").tobytes()).digest()
