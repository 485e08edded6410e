"""Proof of a numerics class by the engine that generates, with engines that repeat the shipped recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from protocol.errors import NotFound
from protocol.identifiers import Digest
from rollouts.engines.interface import Completion, Engine, SampleRequest
from rollouts.engines.vllm.numerics import NO_CLASS
from rollouts.errors import EngineFailed
from rollouts.files.schema import read_rollouts
from rollouts.precision import Arithmetic
from rollouts.recompute import reference
from rollouts.recompute.node_self_test import open_proven

OWN = Arithmetic.parse("vllm-0.32.0/bfloat16/cpu-avx2")
PAIR = Arithmetic.parse("vllm/bfloat16")
Change = Callable[[Completion], Completion]


class RecordedEngine:
    """Answers the reference requests from the recording, with one change in row 3."""

    def __init__(self, device_class: str | None, change: Change) -> None:
        self.arithmetics = (PAIR,) if device_class == NO_CLASS else (OWN, OWN)
        self._change = change
        self.loaded: Digest | None = None
        self.closed = False

    def load(self, folder: Path, *, version: Digest) -> None:
        del folder
        self.loaded = version

    def generate(self, requests: Sequence[SampleRequest], parameters: object) -> Iterator[Completion]:
        del requests, parameters
        path = reference.recording_of(OWN)
        assert path is not None
        assert self.loaded is not None
        for number, row in enumerate(read_rollouts(path).samples):
            tokens = tuple(row.output_tokens.tolist())
            made = Completion(
                sample=number,
                tokens=tokens,
                logprobs=row.logprobs,
                finish=row.finish,
                proofs=row.proofs,
                version=self.loaded,
            )
            yield self._change(made) if number == 3 else made

    def close(self) -> None:
        self.closed = True


class Opened:
    """Opens engines with one change, and keeps them."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self.engines: list[RecordedEngine] = []

    def __call__(self, device_class: str | None) -> Engine:
        self.engines.append(RecordedEngine(device_class, self._change))
        return cast("Engine", self.engines[-1])


def other_logprob(made: Completion) -> Completion:
    return replace(made, logprobs=np.nextafter(made.logprobs, np.float32(1)))


def other_token(made: Completion) -> Completion:
    return replace(made, tokens=(made.tokens[0] + 1, *made.tokens[1:]))


def other_states(made: Completion) -> Completion:
    return replace(made, proofs=made.proofs[:-1] + bytes([made.proofs[-1] ^ 1]))


def unchanged(made: Completion) -> Completion:
    return made


def test_an_engine_that_repeats_the_recording_keeps_its_class() -> None:
    opened = Opened(unchanged)
    assert open_proven(opened, None).arithmetics[0] == OWN
    assert [one.closed for one in opened.engines] == [False]


@pytest.mark.parametrize(
    ("change", "text"),
    [(other_logprob, "log-probabilities"), (other_token, "tokens"), (other_states, "hidden states")],
)
def test_an_engine_that_differs_in_one_row_names_no_class(change: Change, text: str) -> None:
    opened = Opened(change)
    assert open_proven(opened, None).arithmetics[0] == PAIR
    assert [one.closed for one in opened.engines] == [True, False]
    with pytest.raises(EngineFailed, match=f"does not compute like {OWN}: row 3 has other {text}") as refused:
        open_proven(opened, "cpu-avx2")
    assert "leave out --numerics" in refused.value.hint


def test_a_class_without_a_recording_is_not_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reference, "RECORDINGS", tmp_path)
    assert open_proven(Opened(unchanged), None).arithmetics[0] == PAIR
    with pytest.raises(NotFound, match="this release has no recording of"):
        open_proven(Opened(unchanged), "cpu-avx2")


def test_an_engine_without_a_class_loads_nothing() -> None:
    opened = Opened(unchanged)
    open_proven(opened, NO_CLASS)
    assert opened.engines[0].loaded is None
