"""A calibration is a readable file with entries only for measured combinations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import NotFound
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.toploc import TOPLOC, BadCalibration, Calibration, CalibrationEntry, Thresholds
from rollouts.toploc.thresholds import NAMES

TORCH = Arithmetic(engine=EngineName.TORCH, dtype=Dtype.FLOAT32)
VLLM = Arithmetic(engine=EngineName.VLLM, dtype=Dtype.BFLOAT16)
ENTRY = CalibrationEntry(
    model="tiny-llama",
    codec=TOPLOC.name,
    prover=VLLM,
    verifier=TORCH,
    sample=Thresholds(**dict.fromkeys(NAMES, 0.5)),
    file=Thresholds(**dict.fromkeys(NAMES, 0.25)),
    samples=2048,
    files=32,
)
CALIBRATION = Calibration(entries=(ENTRY,))


def test_a_calibration_is_read_back_as_written(tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_bytes(CALIBRATION.to_json())
    assert Calibration.read(tmp_path / "calibration.json") == CALIBRATION


def test_an_entry_is_found_by_model_codec_prover_and_verifier() -> None:
    assert CALIBRATION.find(model="tiny-llama", codec="toploc-32-128", prover=VLLM, verifier=TORCH) is ENTRY


@pytest.mark.parametrize(
    "other",
    [{"model": "tiny-qwen"}, {"codec": "toploc-16-128"}, {"prover": TORCH}, {"verifier": VLLM}],
    ids=lambda other: next(iter(other)),
)
def test_an_unmeasured_combination_is_not_found(other: dict[str, Any]) -> None:
    with pytest.raises(NotFound, match="is not calibrated"):
        CALIBRATION.find(**{"model": "tiny-llama", "codec": TOPLOC.name, "prover": VLLM, "verifier": TORCH, **other})


def without(*path: str | int) -> bytes:
    """Returns the calibration's JSON without one field."""
    whole = at = json.loads(CALIBRATION.to_json())
    for part in path[:-1]:
        at = at[part]
    del at[path[-1]]
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "JSON"),
        (b"[]", "the file"),
        (b'{"format": 3, "entries": []}', "format"),
        (without("entries", 0, "file", "sign_mismatches"), r"entries\.0\.file\.sign_mismatches"),
        (without("entries", 0, "verifier"), r"entries\.0\.verifier"),
        (CALIBRATION.to_json().replace(b"0.25", b"NaN", 1), "finite"),
        (CALIBRATION.to_json().replace(b"0.25", b"-1", 1), "greater than or equal to 0"),
        (CALIBRATION.to_json().replace(b"bfloat16", b"int4"), "bfloat16"),
        (b" " * (1 << 20) + CALIBRATION.to_json(), "bytes"),
        (json.dumps({"entries": [ENTRY.model_dump(mode="json")] * 2}).encode(), "two entries"),
    ],
    ids=["empty", "a list", "another format", "a threshold less", "no verifier", "no number", "a negative one",
         "another type", "too large", "an entry twice"],
)  # fmt: skip
def test_an_invalid_calibration_is_refused_with_the_position(raw: bytes, message: str) -> None:
    with pytest.raises(BadCalibration, match=message):
        Calibration.from_json(raw)


def test_a_missing_calibration_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.json"):
        Calibration.read(tmp_path / "none.json")


def test_the_example_on_the_page_is_a_valid_calibration() -> None:
    page = (Path(__file__).parents[3] / "docs" / "toploc.md").read_bytes()
    example = page.split(b"```json\n")[1].split(b"```")[0]
    assert Calibration.from_json(example).find(model="tiny-llama", codec=TOPLOC.name, prover=TORCH, verifier=TORCH)
