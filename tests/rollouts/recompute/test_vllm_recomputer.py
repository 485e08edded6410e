"""Second passes of a numerics class, with a process that computes given evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from protocol.errors import InvalidInput
from protocol.identifiers import ZERO_DIGEST, Digest
from rollouts.checks import Draws, RowEvidence
from rollouts.errors import EngineFailed
from rollouts.files.samples import RolloutFile
from rollouts.precision import Arithmetic
from rollouts.recompute import vllm_recomputer
from rollouts.recompute.errors import ClassNotReproduced, NumericsUnstable
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.recompute.vllm_recomputer import VllmRecomputer
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import Gaps
from rollouts.toploc import ProofResult

OWN = Arithmetic.parse("vllm-0.32.0/bfloat16/cpu-avx2")
FILE = cast("RolloutFile", None)
DRAWS = Draws(seed=None, parameters=SamplingParameters(max_new_tokens=1))
PROOF = ProofResult(
    malformed=None,
    points=128,
    exponent_mismatches=0,
    sign_mismatches=0,
    mantissa_total=0,
    mantissa_median=0.0,
    distance_total=0,
)


def evidence(value: float = -1.5) -> RowEvidence:
    numbers = np.full(3, value, np.float32)
    gaps = Gaps(numbers, numbers, np.zeros(3, np.bool_), numbers, numbers, numbers)
    return RowEvidence(proofs=(PROOF,), logprobs=numbers, gaps=gaps, excess=numbers, variance=numbers)


class GivenProcess:
    """A process that computes the same evidence for each row; restarts change it."""

    def __init__(self, *, after_restart: RowEvidence | None = None, start_error: Exception | None = None) -> None:
        self.arithmetic = OWN
        self.calls: list[str] = []
        self._now = evidence()
        self._after_restart = after_restart or evidence()
        self._start_error = start_error

    def compare(self, file: RolloutFile, rows: Sequence[int], **_: object) -> dict[int, RowEvidence]:
        del file
        self.calls.append(f"compare {list(rows)}")
        return dict.fromkeys(rows, self._now)

    def restart(self) -> None:
        self.calls.append("restart")
        if self._start_error is not None:
            raise self._start_error
        self._now = self._after_restart

    def load(self, folder: Path, *, version: Digest) -> None:
        assert (folder, version) == (Path("version"), ZERO_DIGEST)
        self.calls.append("load")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture(autouse=True)
def _proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def prove(process: GivenProcess) -> None:
        process.calls.append("prove")

    monkeypatch.setattr(vllm_recomputer, "prove", prove)


def recomputer(process: GivenProcess) -> VllmRecomputer:
    made = VllmRecomputer(cast("VllmProcess", process), folder=Path("version"), version=ZERO_DIGEST)
    made.evidence(FILE, dict.fromkeys([0, 1, 2], DRAWS))
    process.calls.clear()
    return made


def again(process: GivenProcess, rows: Sequence[int]) -> None:
    made = recomputer(process)
    made.renew()
    made.again(FILE, dict.fromkeys(rows, DRAWS), [])


def test_a_second_pass_runs_in_one_new_process_that_reproduces_the_recording_first() -> None:
    process = GivenProcess()
    made = recomputer(process)
    made.renew()
    for rows, alone in (([0, 1], [1]), ([2], [])):
        (found,) = made.again(FILE, dict.fromkeys(rows, DRAWS), alone)
        assert sorted(found) == rows
    started = ["restart", "prove", "load"]
    assert process.calls == [*started, "compare [0]", "compare [1]", "compare [2]"]


@pytest.mark.parametrize(
    "other",
    [
        replace(evidence(), logprobs=np.nextafter(evidence().logprobs, np.float32(0))),
        replace(evidence(), proofs=(replace(PROOF, sign_mismatches=1),)),
        replace(evidence(), gaps=None),
        replace(evidence(), gaps=replace(cast("Gaps", evidence().gaps), mismatches=np.ones(3, np.bool_))),
    ],
    ids=["a bit of a log-probability", "a state", "no replay", "a draw"],
)
def test_a_new_process_that_differs_is_ended_and_the_row_is_named(other: RowEvidence) -> None:
    process = GivenProcess(after_restart=other)
    with pytest.raises(NumericsUnstable, match="differ in row 1") as refused:
        again(process, [1, 2])
    assert refused.value.arithmetic == OWN
    assert not refused.value.retryable
    assert process.calls[-1] == "close"


def test_sums_outside_the_engine_may_differ() -> None:
    other = replace(evidence(), excess=evidence(0.0).excess, variance=None)
    again(GivenProcess(after_restart=other), [1])


def test_a_new_process_that_differs_from_the_recording_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: GivenProcess) -> None:
        raise ClassNotReproduced("row 0 differs", arithmetic=process.arithmetic)

    monkeypatch.setattr(vllm_recomputer, "prove", refuse)
    process = GivenProcess()
    with pytest.raises(ClassNotReproduced, match="row 0 differs"):
        again(process, [1])
    assert process.calls == ["restart", "close"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(InvalidInput("vLLM 0.33.0 is installed"), ClassNotReproduced), (EngineFailed("it crashed"), EngineFailed)],
)
def test_only_a_machine_without_the_class_fails_the_class(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        again(GivenProcess(start_error=error), [1])
