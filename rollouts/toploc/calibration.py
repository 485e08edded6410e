"""Calibration files: thresholds of honest proofs for one model, one prover and one verifier.

The prover and the verifier are each given by an arithmetic: an engine and a data type.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from protocol.errors import InvalidInput, NotFound
from protocol.wire.base import Name
from rollouts.precision import Arithmetic
from rollouts.toploc.thresholds import Thresholds

LARGEST_CALIBRATION = 1 << 20
"""Maximum size in bytes; enough for a few thousand entries."""


class BadCalibration(InvalidInput):
    """The bytes are not a valid calibration."""

    code = "bad-calibration"
    default_hint = "docs/toploc.md has an example and explains how to measure a calibration"


class _CalibrationModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CalibrationEntry(_CalibrationModel):
    """Thresholds for one model, proof format, prover and verifier."""

    model: Name
    codec: Name
    prover: Arithmetic
    verifier: Arithmetic
    sample: Thresholds
    file: Thresholds
    samples: Annotated[int, Field(ge=1)]
    """Number of honest samples that were measured."""
    files: Annotated[int, Field(ge=1)]
    """Number of files that held these samples."""


class Calibration(_CalibrationModel):
    """Entries for all combinations that a pool allows; nodes with another combination get no lease."""

    format: Literal[1, 2] = 1
    entries: Annotated[tuple[CalibrationEntry, ...], Field(max_length=4096)]

    @model_validator(mode="after")
    def _check_once(self) -> Self:
        counts = Counter((one.model, one.codec, one.prover, one.verifier) for one in self.entries)
        if doubled := [key for key, count in counts.items() if count > 1]:
            raise ValueError(f"two entries for {doubled[0]}")
        return self

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        """Reads a calibration.

        Raises:
            BadCalibration: The bytes are too large or invalid.
        """
        if len(raw) > LARGEST_CALIBRATION:
            raise BadCalibration(f"the calibration has {len(raw)} bytes, more than {LARGEST_CALIBRATION}")
        try:
            return cls.model_validate_json(raw)
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_input=False)[0]
            raise BadCalibration(f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a calibration from a file.

        Raises:
            NotFound: The file does not exist.
            BadCalibration: The file is not a valid calibration.
        """
        try:
            with path.open("rb") as file:
                raw = file.read(LARGEST_CALIBRATION + 1)
        except FileNotFoundError:
            raise NotFound(
                f"there is no calibration at {path}", hint="docs/toploc.md explains how to measure one"
            ) from None
        return cls.from_json(raw)

    def to_json(self) -> bytes:
        """Returns the file's bytes: indented JSON."""
        return self.model_dump_json(indent=2).encode() + b"\n"

    def find(self, *, model: str, codec: str, prover: Arithmetic, verifier: Arithmetic) -> CalibrationEntry:
        """Returns the entry for a model, proof format, prover and verifier.

        Raises:
            NotFound: There is no such entry.
        """
        for one in self.entries:
            if (one.model, one.codec, one.prover, one.verifier) == (model, codec, prover, verifier):
                return one
        raise NotFound(
            f"{model} ({codec}), by {prover.engine} in {prover.dtype} for {verifier.engine} in {verifier.dtype}, "
            "is not calibrated",
            hint="lease only calibrated combinations, or calibrate this one; see docs/toploc.md",
        )
