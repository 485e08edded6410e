"""Proofs built while sequences grow equal those of the finished sequences, under any schedule."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from protocol.errors import Conflict, InvalidInput
from rollouts import toploc
from rollouts.toploc import PendingProofs, PolynomialCodec, ProofBuilder
from tests.rollouts.toploc.states import normal_states

SMALL = PolynomialCodec(interval=3, top_k=4)


class Growth(RuleBasedStateMachine):
    """Sequences begin, some with rows, grow together or alone, end with surplus rows, are dropped, and begin again."""

    def __init__(self) -> None:
        super().__init__()
        self.surplus = 2
        self.builder = ProofBuilder(codec=SMALL, surplus=self.surplus, most_waiting_bytes=64)
        self.rows: dict[int, list[torch.Tensor]] = {}
        self.continuing: set[int] = set()
        self.finished: list[tuple[PendingProofs, torch.Tensor, bool]] = []
        self.steps = 0

    @rule(
        names=st.lists(st.integers(0, 12), max_size=8, unique=True),
        dtype=st.sampled_from(["float32", "bfloat16"]),
        copy=st.booleans(),
    )
    def step(self, names: list[int], dtype: str, copy: bool) -> None:
        self.steps += 1
        rows = normal_states(len(names), 5, seed=self.steps, dtype=getattr(torch, dtype))
        self.builder.add(names, rows, copy=copy)
        for name, row in zip(names, rows, strict=True):
            self.rows.setdefault(name, []).append(row.to(torch.bfloat16, copy=True))
        if copy:
            rows.zero_()  # the engine overwrites them

    @rule(name=st.integers(0, 12), count=st.integers(0, SMALL.interval - 1))
    def begin(self, name: int, count: int) -> None:
        if name in self.rows:
            return
        self.steps += 1
        rows = normal_states(count, 5, seed=self.steps, dtype=torch.bfloat16)
        self.builder.begin(name, rows.view(torch.int16).numpy().view(np.uint16))
        self.rows[name] = [*rows]
        self.continuing.add(name)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        got = self.rows.pop(name)
        tokens = len(got) - data.draw(st.integers(0, min(self.surplus, len(got))))
        states = torch.stack([torch.zeros(5, dtype=torch.bfloat16), *got])[1 : tokens + 1]
        self.finished.append((self.builder.finish(name, rows=tokens), states, name in self.continuing))
        self.continuing.discard(name)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        self.builder.discard(name)
        self.continuing.discard(name)
        del self.rows[name]

    @precondition(lambda self: self.finished)
    @rule()
    def ask(self) -> None:
        pending, states, continuing = self.finished.pop()
        assert pending.result() == toploc.proofs_of(states, codec=SMALL)
        if continuing:
            whole = len(states) // SMALL.interval * SMALL.interval
            assert pending.left().tolist() == states[whole:].view(torch.int16).numpy().view(np.uint16).tolist()

    @invariant()
    def what_waits_is_bounded(self) -> None:
        rest = self.builder._background._rest  # bounded memory cannot be observed from outside
        assert rest is None or sum(rest.counts) <= (13 + 64) * (3 - 1 + self.surplus)

    def teardown(self) -> None:
        self.builder.close()
        for pending, states, _ in self.finished:
            assert pending.done()
            assert pending.result() == toploc.proofs_of(states, codec=SMALL)


TestGrowth = Growth.TestCase
TestGrowth.settings = settings(max_examples=15, stateful_step_count=30)


@dataclass(frozen=True)
class Held(PolynomialCodec):
    """Builds when the test allows it, and records the number of chunks per call."""

    batches: list[int] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def build(
        self, stretches: Sequence[torch.Tensor], *, sizes: Sequence[Sequence[int] | None] | None = None
    ) -> list[bytes]:
        self.begun.set()
        assert self.go_on.wait(60)
        self.batches.append(sum(map(len, stretches)))
        return toploc.TOPLOC.build(stretches, sizes=sizes)


class Failing(PolynomialCodec):
    """A codec without a proof for chunks that begin with a negative value."""

    def build(
        self, stretches: Sequence[torch.Tensor], *, sizes: Sequence[Sequence[int] | None] | None = None
    ) -> list[bytes]:
        chunks = [chunk for stretch in stretches for chunk in stretch]
        if any(chunk[0] < 0 for chunk in chunks):
            raise toploc.Unprovable("a negative value")
        return [b"+" for _ in chunks]


def test_complete_intervals_are_built_before_their_sequences_end() -> None:
    states, codec = normal_states(33, 8), Held()
    codec.go_on.set()
    with ProofBuilder(codec=codec) as builder:
        for row in states[:32]:
            builder.add(range(64), row.expand(64, -1))
        assert codec.begun.wait(60)
        builder.add([7], states[32:])
        assert builder.finish(7, rows=33).result() == toploc.proofs_of(states)
    assert codec.batches[0] == 64


def test_the_engine_continues_while_proofs_are_built() -> None:
    codec = Held()
    with ProofBuilder(codec=codec) as builder:
        states = normal_states(64, 8)
        builder.add(range(64), states)
        pending = [builder.finish(name, rows=1) for name in range(64)]
        assert codec.begun.wait(60)
        builder.add(range(100), normal_states(100, 8))
        assert not any(each.done() for each in pending)
        codec.go_on.set()
        assert pending[0].result() == toploc.proofs_of(states[:1])
        assert all(each.done() for each in pending)


def test_the_engine_waits_while_too_many_proofs_are_queued() -> None:
    codec = Held()
    builder = ProofBuilder(codec=codec, most_waiting_bytes=4 * 8 * 2)
    pending = []
    for name in range(2):  # half of the bytes have been handed over
        builder.add([name], normal_states(1, 8))
        pending.append(builder.finish(name, rows=1))
    asking = threading.Thread(target=pending[0].result)
    asking.start()
    assert codec.begun.wait(60)
    adding = threading.Thread(target=builder.add, args=([2, 3], normal_states(2, 8)))
    adding.start()
    adding.join(0.05)
    assert adding.is_alive()
    codec.go_on.set()
    for thread in (adding, asking):
        thread.join(60)
        assert not thread.is_alive()
    builder.close()


def test_one_unprovable_sequence_does_not_affect_the_others() -> None:
    with ProofBuilder(codec=Failing(interval=2)) as builder:
        builder.add("abc", torch.tensor([[1.0], [-1.0], [1.0]]))
        builder.add("abc", torch.tensor([[1.0], [1.0], [1.0]]))
        builder.add("ab", torch.tensor([[1.0], [1.0]]))
        a, b, c = (builder.finish(name, rows=rows) for name, rows in (("a", 3), ("b", 3), ("c", 2)))
        assert (a.result(), c.result()) == (b"++", b"+")
        with pytest.raises(toploc.Unprovable, match="negative"):
            b.result()


def test_a_sequence_without_rows_has_no_proofs() -> None:
    with ProofBuilder() as builder:
        assert builder.finish("never seen", rows=0).result() == b""


@pytest.mark.parametrize(("surplus", "tokens"), [(0, 4), (0, 2), (1, 1), (1, 4), (0, -1)])
def test_a_wrong_number_of_tokens_is_refused(surplus: int, tokens: int) -> None:
    with ProofBuilder(surplus=surplus) as builder:
        for _ in range(3):
            builder.add(["a"], normal_states(1, 8))
        with pytest.raises(InvalidInput, match="3 rows of states"):
            builder.finish("a", rows=tokens)


@pytest.mark.parametrize(
    ("names", "rows"),
    [(["a"], torch.zeros(2, 8)), (["a", "a"], torch.zeros(2, 8)), (["a"], torch.zeros(1, 7)), (["a"], torch.zeros(8)),
     (["a"], torch.zeros(1, 8, dtype=torch.int64))],
    ids=["too few names", "a name twice", "another width", "no rows", "integers"],
)  # fmt: skip
def test_mismatched_rows_are_refused_and_not_added(names: list[str], rows: torch.Tensor) -> None:
    with ProofBuilder() as builder:
        builder.add(["a", "b"], normal_states(2, 8))
        with pytest.raises(InvalidInput):
            builder.add(names, rows)
        assert builder.finish("a", rows=1).result() == toploc.proofs_of(normal_states(2, 8)[:1])


BAD_BEGINNINGS = {
    "a whole interval": np.zeros((3, 5), np.uint16),
    "another width": np.zeros((2, 4), np.uint16),
    "signed bit patterns": np.zeros((2, 5), np.int16),
}


@pytest.mark.parametrize("rows", BAD_BEGINNINGS.values(), ids=BAD_BEGINNINGS.keys())
def test_a_sequence_can_only_begin_with_rows_of_an_incomplete_interval(rows: NDArray[np.uint16]) -> None:
    with ProofBuilder(codec=SMALL) as builder:
        builder.add(["a"], normal_states(1, 5, seed=1))
        for name, given in [("b", rows), ("a", np.zeros((2, 5), np.uint16))]:
            with pytest.raises(InvalidInput, match="can't begin with rows"):
                builder.begin(name, given)


def test_a_closed_builder_refuses_work() -> None:
    builder = ProofBuilder()
    builder.add(["a"], normal_states(1, 8))
    pending = builder.finish("a", rows=1)
    builder.close()
    builder.close()
    assert pending.result() == toploc.proofs_of(normal_states(1, 8))
    with pytest.raises(Conflict, match="closed"):
        builder.add(["a"], normal_states(1, 8))
    with pytest.raises(Conflict, match="closed"):
        builder.finish("b", rows=0)


def test_a_negative_surplus_is_refused() -> None:
    with pytest.raises(InvalidInput, match="surplus"):
        ProofBuilder(surplus=-1)


@pytest.mark.needs_gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator")
def test_rows_on_an_accelerator_give_the_same_proofs() -> None:
    states = normal_states(70, 256)
    with ProofBuilder() as builder:
        for row in states.to("cuda"):
            builder.add(["a"], row[None])
        assert builder.finish("a", rows=70).result() == toploc.proofs_of(states)
