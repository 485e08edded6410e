"""Fingerprint of all outputs of a rollout file, independent of the order of rows and the Parquet encoding."""

from __future__ import annotations

import hashlib

import numpy as np

from protocol.identifiers import Digest, digest
from rollouts.files.samples import RolloutFile, Sample

_TAG = b"muster-outputs-v1"


def fingerprint(file: RolloutFile) -> Digest:
    """Returns the SHA-256 over the sorted hashes of (prompt index, target length, output tokens, turns) of all rows."""
    return digest(hashlib.sha256(_TAG + b"".join(sorted(map(_row, file.samples)))).digest())


def _row(sample: Sample) -> bytes:
    target = -1 if sample.target_length is None else sample.target_length
    head = sample.prompt_index.to_bytes(8, "big") + target.to_bytes(8, "big", signed=True)
    turns = b"".join(
        np.array([turn.drawn, len(turn.given), *turn.given.tolist()], ">i4").tobytes() for turn in sample.turns
    )
    return hashlib.sha256(head + sample.output_tokens.astype(">i4").tobytes() + turns).digest()
