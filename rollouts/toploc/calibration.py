"""Thresholds as a file: what honest proofs show for a model, computed by one engine and verified by another."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from protocol.errors import InvalidInput, NotFound
from protocol.wire.base import Name
from rollouts.precision import (
    Dtype,
    EngineName,
    arithmetic_name,
)
from rollouts.toploc.thresholds import Thresholds

LARGEST_CALIBRATION = 1 << 20
"""In bytes; a few thousand entries."""


class BadCalibration(InvalidInput):
    """The bytes are no calibration."""

    code = "bad-calibration"
    default_hint = "docs/toploc.md shows one, and says how it is measured"


class _CalibrationModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Arithmetic(_CalibrationModel):
    """What states are computed with. In words `ENGINE/DTYPE`, such as `torch/float32`."""

    engine: EngineName
    dtype: Dtype

    def __str__(self) -> str:
        return arithmetic_name(self.engine, self.dtype)


class CalibrationEntry(_CalibrationModel):
    """What passes for one model, format, prover and verifier."""

    model: Name
    codec: Name
    prover: Arithmetic
    verifier: Arithmetic
    sample: Thresholds
    file: Thresholds
    samples: Annotated[int, Field(ge=1)]
    """How many honest samples the thresholds come from."""
    files: Annotated[int, Field(ge=1)]
    """Into how many files these were gathered."""


class Calibration(_CalibrationModel):
    """Entries for all that a pool allows. Work of anything else gets no lease."""

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
            BadCalibration: It is too large, or not what this class writes.
        """
        if len(raw) > LARGEST_CALIBRATION:
            raise BadCalibration(f"a calibration of {len(raw)} bytes, above {LARGEST_CALIBRATION}")
        try:
            return cls.model_validate_json(raw)
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_input=False)[0]
            raise BadCalibration(f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a calibration from a file.

        Raises:
            NotFound: There is no such file.
            BadCalibration: It is no calibration.
        """
        try:
            with path.open("rb") as file:
                raw = file.read(LARGEST_CALIBRATION + 1)
        except FileNotFoundError:
            raise NotFound(f"there is no calibration at {path}", hint="measure one; see docs/toploc.md") from None
        return cls.from_json(raw)

    def to_json(self) -> bytes:
        """The file's bytes, for people too."""
        return self.model_dump_json(indent=2).encode() + b"\n"

    def find(self, *, model: str, codec: str, prover: Arithmetic, verifier: Arithmetic) -> CalibrationEntry:
        """The one entry for these.

        Raises:
            NotFound: They were not calibrated.
        """
        for one in self.entries:
            if (one.model, one.codec, one.prover, one.verifier) == (model, codec, prover, verifier):
                return one
        raise NotFound(
            f"{model} ({codec}), by {prover.engine} in {prover.dtype} for {verifier.engine} in {verifier.dtype}, "
            "is not calibrated",
            hint="lease only what is, or measure it; see docs/toploc.md",
        )
