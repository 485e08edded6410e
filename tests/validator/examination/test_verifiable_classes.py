"""Classes that a machine reports: found again after an error, and dropped until a failed class passes a check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protocol.errors import MusterError, NotFound
from protocol.runtime.clock import ManualClock
from protocol.runtime.threads import replaced_runner, run_inline
from rollouts.errors import EngineFailed
from rollouts.precision import Arithmetic
from rollouts.recompute.errors import ClassNotReproduced
from rollouts.recompute.place import VllmPlace
from validator.examination.numerics import FIRST_PAUSE, LONGEST_PAUSE, VerifiableClasses

AVX2, F32 = (f"vllm-0.32.0/{dtype}/cpu-avx2" for dtype in ("bfloat16", "float32"))
PLACE = VllmPlace(python=Path("/opt/vllm/bin/python"))
BUSY = EngineFailed("it timed out after 120 seconds")
DIFFERS = ClassNotReproduced("row 0 differs", arithmetic=Arithmetic.parse(AVX2))


@dataclass
class Machine:
    """A machine whose searches and checks raise the given errors, one after another, and then succeed."""

    searches: list[MusterError] = field(default_factory=list)
    checks: list[MusterError] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    searched: int = 0

    def find(self, place: VllmPlace) -> Sequence[Arithmetic]:
        assert place.python in {PLACE.python, None}
        self.searched += 1
        if self.searches:
            raise self.searches.pop(0)
        return [Arithmetic.parse(AVX2), Arithmetic.parse(F32)]

    def check(self, place: VllmPlace, arithmetic: Arithmetic) -> None:
        assert place == PLACE
        self.checked.append(str(arithmetic))
        if self.checks:
            raise self.checks.pop(0)

    def classes(self, clock: ManualClock, place: VllmPlace = PLACE) -> VerifiableClasses:
        return VerifiableClasses(place, clock=clock, find=self.find, check=self.check)


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Yields a clock; calls run in the event loop's thread, so that a turn waits for them."""
    with replaced_runner(run_inline):
        yield ManualClock()


async def test_a_search_that_failed_is_repeated_with_growing_pauses(clock: ManualClock) -> None:
    machine = Machine(searches=[BUSY, NotFound("there is no interpreter"), BUSY])
    with capture_logs() as logs:
        async with machine.classes(clock) as classes:
            assert (machine.searched, classes.names()) == (1, ())
            await clock.turn(FIRST_PAUSE / 3)
            assert machine.searched == 1
            for searched in (2, 3, 4):
                await clock.turn(FIRST_PAUSE * 2 ** (searched - 2))
                assert machine.searched >= searched
            assert classes.names() == (AVX2, F32)
            await clock.turn(timedelta(days=1))
    assert machine.searched == 4, "no search follows a success"
    assert [each["event"] for each in logs] == ["no-numerics"] * 3 + ["numerics"]


async def test_a_validator_without_vllm_searches_once_and_logs_nothing(clock: ManualClock) -> None:
    machine = Machine(searches=[NotFound("vLLM is not installed")])
    with capture_logs() as logs:
        async with machine.classes(clock, VllmPlace()) as classes:
            await clock.turn(timedelta(days=1))
            assert classes.names() == ()
    assert (machine.searched, logs) == (1, [])


async def test_a_failed_class_returns_after_a_check_and_others_stay(clock: ManualClock) -> None:
    machine = Machine(checks=[DIFFERS, BUSY])
    async with machine.classes(clock) as classes:
        for name in (AVX2, AVX2, "vllm-0.32.0/bfloat16/sm_90"):  # a repeated failure, and a class of another machine
            classes.failed(name, why="row 3 differs")
        assert classes.names() == (F32,)
        await clock.turn(FIRST_PAUSE / 3)
        assert machine.checked == []
        await clock.turn(FIRST_PAUSE)
        assert (machine.checked, classes.names()) == ([AVX2], (F32,))
        await clock.turn(LONGEST_PAUSE)
        assert (machine.checked, classes.names()) == ([AVX2] * 3, (AVX2, F32))
        classes.failed(AVX2, why="again")
        assert classes.names() == (F32,)
