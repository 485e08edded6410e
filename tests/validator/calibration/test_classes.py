"""`muster validator calibrate --classes`: files of a class must be equal to the bit in another process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cli.lazy import mount
from cli.main import PARTS, app
from protocol.identifiers import ZERO_DIGEST, Digest
from rollouts.checks import RowEvidence
from rollouts.engines.interface import Completion, FinishReason, SampleRequest
from rollouts.files.samples import RolloutFile
from rollouts.precision import Arithmetic
from rollouts.recompute.place import VllmPlace, classes_at
from rollouts.sampling.replay import Gaps
from tests.kit.rollout_files import RECIPE, as_version
from tests.kit.tiny_model import tiny_folder
from tests.kit.vllm_engine import PYTHON
from validator.calibration import classes

CLASS = "vllm-0.32.0/bfloat16/cpu-avx2"
ZEROS = np.zeros(2, np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_folder(
        tmp_path_factory.mktemp("version") / "model", kind="llama", num_attention_heads=3, num_key_value_heads=1
    )
    changes = {"arithmetic": (CLASS,), "length": None, "max_prompt_tokens": 64}
    return as_version(folder, RECIPE.model_copy(update=changes)).folder


def calibrate(model: Path, *options: str) -> tuple[int, str, str]:
    mount(app, PARTS, ["validator"])
    words = ["validator", "calibrate", "--model", str(model), "--groups", "2", *options]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


class GivenProcess:
    """A process that draws the same answers in every place, except for one row of one recomputation."""

    started: list[tuple[str, int | None]]
    differs: tuple[int, int] | None
    """File and row whose recomputation differs."""

    def __init__(self, place: VllmPlace, arithmetic: Arithmetic, *, batch: int | None = None) -> None:
        del place
        self.started.append((str(arithmetic), batch))
        self._file = 0

    def __enter__(self) -> GivenProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def load(self, folder: Path, *, version: Digest) -> None:
        del folder, version

    def generate(self, requests: Sequence[SampleRequest], parameters: object) -> dict[int, Completion]:
        del parameters
        return {
            one.sample: Completion(
                sample=one.sample,
                tokens=(5, 6),
                logprobs=ZEROS,
                finish=FinishReason.LENGTH,
                proofs=b"",
                version=ZERO_DIGEST,
            )
            for one in requests
        }

    def compare(self, file: RolloutFile, rows: Sequence[int], **_: Any) -> dict[int, RowEvidence]:
        assert str(file.header.arithmetic) == CLASS
        gaps = Gaps(ZEROS, ZEROS, np.zeros(2, np.bool_), ZEROS, ZEROS, ZEROS)
        off = self.differs[1] if self.differs is not None and self.differs[0] == self._file else None
        self._file += 1
        return {row: RowEvidence(proofs=(), logprobs=ZEROS + np.float32(row == off), gaps=gaps) for row in rows}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> type[GivenProcess]:
    GivenProcess.started, GivenProcess.differs = [], None
    monkeypatch.setattr(classes, "VllmProcess", GivenProcess)
    monkeypatch.setattr(classes, "prove", lambda _: None)
    return GivenProcess


def test_each_class_and_batch_size_has_a_generating_and_a_recomputing_process(
    given: type[GivenProcess], model: Path
) -> None:
    code, output, _ = calibrate(model, "--classes", CLASS, "--batches", "8,1", "--samples", "16", "--json")
    assert code == 0
    assert given.started == [(CLASS, 8), (CLASS, None), (CLASS, 1), (CLASS, None)]
    found = json.loads(output)
    assert [(one["arithmetic"], one["batch"], one["rows"], one["differing"]) for one in found] == [
        (CLASS, 8, 16, 0),
        (CLASS, 1, 16, 0),
    ]


def test_a_difference_is_an_error_that_names_file_and_row(given: type[GivenProcess], model: Path) -> None:
    given.differs = (1, 3)
    code, _, errors = calibrate(model, "--classes", CLASS, "--batches", "8", "--samples", "16")
    assert code == 1
    assert f"{CLASS}, batch 8: file 1, row 3: token 0 has log-probability" in " ".join(errors.split())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--classes", CLASS, "--out", "limits.json"), "numerics classes have no limits that could be written"),
        (("--classes", "vllm/bfloat16"), "vllm/bfloat16 is no numerics class"),
        (("--classes", "cpu-avx2"), "neither ENGINE/TYPE nor a numerics class"),
        (("--classes", CLASS, "--batches", "0"), "'0' is no batch size"),
        (("--classes", CLASS), "vLLM is not installed in this environment"),
        (("--classes", CLASS.replace("avx2", "avx9"), "--vllm-python", "/bin/sh"), "can't compute like cpu-avx9"),
    ],
)
def test_bad_options_are_refused_before_anything_is_generated(model: Path, options: tuple[str, ...], why: str) -> None:
    code, _, errors = calibrate(model, *options)
    assert code == 1
    assert why in " ".join(errors.split())


@pytest.mark.needs_vllm
def test_vllm_generates_and_another_process_finds_no_difference(model: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"there is no vLLM for the CPU in {PYTHON.parents[1]}: run deploy/setup/vllm.sh")
    if CLASS not in map(str, classes_at(VllmPlace(python=PYTHON, device="cpu"))):
        pytest.skip(f"this machine does not compute in {CLASS}")
    python = ("--vllm-python", str(PYTHON), "--device", "cpu")
    code, output, errors = calibrate(model, "--classes", CLASS, "--batches", "5", "--samples", "16", "--json", *python)
    assert code == 0, errors
    [found] = json.loads(output)
    assert (found["rows"], found["differing"], found["first"]) == (16, 0, "")
    assert found["tokens"] > found["rows"]
