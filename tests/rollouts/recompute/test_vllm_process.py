"""Deadlines of the exchange with a vLLM process, whose program is replaced by one that hangs."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path

import pytest

from protocol.runtime.cpu_class import cpu_class
from rollouts.checks import Draws
from rollouts.errors import EngineFailed
from rollouts.files.packed_format import pack
from rollouts.files.schema import read_rollout_bytes
from rollouts.files.self_test_file import TRIAL_LIMITS, trial_file
from rollouts.precision import Arithmetic
from rollouts.recompute import vllm_process
from rollouts.recompute.messages import Opened, encode
from rollouts.recompute.place import VllmPlace
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.sampling.parameters import SamplingParameters

SHORT = timedelta(seconds=0.5)


@pytest.fixture(autouse=True)
def _short_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_process, "_END_WITHIN", timedelta(seconds=0.1))


@pytest.fixture
def own() -> Arithmetic:
    """Returns a class of this machine, as far as its processor decides it."""
    if (device := cpu_class()) is None:
        pytest.skip("this processor has no numerics class")
    return Arithmetic.parse(f"vllm-0.32.0/bfloat16/{device}")


def hanging(folder: Path, *, replies: bytes) -> VllmPlace:
    """Returns a place whose interpreter sends these bytes, then neither reads nor writes."""
    (folder / "replies").write_bytes(replies)
    program = folder / "python"
    program.write_text(f"#!/bin/sh\ncat {folder}/replies\nexec sleep 600\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return VllmPlace(python=program)


def test_a_process_that_never_replies_is_ended(
    tmp_path: Path, own: Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_process, "START_WITHIN", SHORT)
    with pytest.raises(EngineFailed, match="ended: it did not reply in time"):
        VllmProcess(hanging(tmp_path, replies=b""), own)


def test_a_process_that_does_not_read_a_large_request_is_ended(
    tmp_path: Path, own: Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_process, "COMPARE_WITHIN", SHORT)
    monkeypatch.setattr(vllm_process, "pack", lambda file: pack(file) + bytes(1 << 20))
    file = read_rollout_bytes(trial_file(), limits=TRIAL_LIMITS)
    with VllmProcess(hanging(tmp_path, replies=encode(Opened(arithmetic=own))), own) as process:
        with pytest.raises(EngineFailed, match="ended: it did not read the request in time"):
            process.compare(file, {0: Draws(seed=None, parameters=SamplingParameters(max_new_tokens=1))})
        assert not process.alive


def test_a_reply_beyond_the_size_of_any_evidence_is_not_read(
    tmp_path: Path, own: Arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_process, "COMPARE_WITHIN", timedelta(seconds=30))
    huge = (0).to_bytes(4, "little") + (1 << 30).to_bytes(8, "little")
    file = read_rollout_bytes(trial_file(), limits=TRIAL_LIMITS)
    with (
        VllmProcess(hanging(tmp_path, replies=encode(Opened(arithmetic=own)) + huge), own) as process,
        pytest.raises(EngineFailed, match="1073741824 bytes of body"),
    ):
        process.compare(file, {0: Draws(seed=None, parameters=SamplingParameters(max_new_tokens=1))})
