"""Objects that a sandbox's server makes once and that jobs inherit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec

import psutil
import pytest
from pydantic import JsonValue

from protocol.errors import InvalidInput
from rollouts.sandbox import (
    Job,
    JobKind,
    JobLimits,
    Preparation,
    PreparationFailed,
    Sandboxes,
    SandboxSettings,
    SandboxUnavailable,
    process,
)
from rollouts.sandbox.control import ObjectPrepared
from rollouts.sandbox.process import Sandbox

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")


@pytest.fixture(scope="module")
def one() -> Iterator[Sandboxes]:
    """Returns a single sandbox of each kind."""
    found = Sandboxes(SandboxSettings(most=1))
    yield found
    found.close()


def dataset(
    name: str,
    config: dict[str, JsonValue] | None = None,
    *,
    within: timedelta = timedelta(seconds=60),
    memory_bytes: int = 512 << 20,
) -> Preparation:
    return Preparation(
        module="inside.gym.dataset",
        payload=_with_config(name, config or {}),
        within=within,
        memory_bytes=memory_bytes,
    )


def _with_config(name: str, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {"dataset": name, "config": config, "seed": 1, "size": 100}


def question(sandboxes: Sandboxes, needs: Preparation) -> str:
    limits = JobLimits(memory_bytes=needs.memory_bytes + (512 << 20))
    job = Job(module="inside.gym.dataset", payload={"index": 3}, needs=needs, limits=limits)
    outcome = sandboxes.run(JobKind.GYM, job)
    assert outcome.succeeded, outcome.errors
    return str(json.loads(outcome.answer)["question"])


def test_jobs_inherit_the_object_and_change_nothing_in_it(one: Sandboxes) -> None:
    first = question(one, dataset("gcd"))
    assert question(one, dataset("lcm")) != first
    assert question(one, dataset("gcd")) == first


def test_an_object_that_was_forgotten_is_made_again(one: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_MOST_PREPARED", 2)
    names = ("gcd", "lcm", "products", "maze")
    assert [question(one, dataset(name)) for name in names] == [question(one, dataset(name)) for name in names]


def test_a_failure_says_why_and_leaves_a_working_pool(one: Sandboxes) -> None:
    with pytest.raises(PreparationFailed, match="KeyError: 'nonsense'"):
        question(one, dataset("nonsense"))
    assert question(one, dataset("gcd"))


def test_preparations_are_bounded_in_time_and_memory(one: Sandboxes) -> None:
    with pytest.raises(SandboxUnavailable, match=r"within 0\.001 s") as late:
        question(one, dataset("rush_hour", within=timedelta(milliseconds=1)))
    assert late.value.retryable  # a slow machine is not a fault of the options
    with pytest.raises(PreparationFailed):  # MemoryError, or a library that can't be mapped
        question(one, dataset("codeio", memory_bytes=64 << 20))
    with pytest.raises(PreparationFailed, match="needs more than 512 MiB of memory") as large:
        question(one, dataset("count_primes", {"max_n": 100_000_000}))
    assert large.value.hint == "choose options that make it smaller"
    assert question(one, dataset("gcd"))


def test_a_job_may_have_more_memory_than_the_object_that_it_inherits() -> None:
    with pytest.raises(
        InvalidInput, match="a job may have 1024 MiB of memory, but the object that it inherits may have 1024"
    ):
        Job(module="m", payload={}, needs=dataset("gcd", memory_bytes=1 << 30))


def test_an_object_that_does_not_fit_beside_others_is_made_alone(one: Sandboxes) -> None:
    servers = []
    for most in (6_000_000, 6_000_001):  # a list of that many numbers, of 8 bytes each, beside 180 MiB
        needs = dataset("count_primes", {"min_n": most - 9, "max_n": most}, memory_bytes=252 << 20)
        assert question(one, needs)
        with one.borrow(JobKind.GYM) as sandbox:
            servers.append(sandbox.pid)
    assert len(set(servers)) == 2


def test_objects_that_share_state_replace_each_other(one: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    ordered: list[str] = []
    make = Sandbox._make

    def counted(sandbox: Sandbox, wanted: Preparation, *, forget: Sequence[str]) -> ObjectPrepared:
        ordered.append(str(wanted.payload["config"]))
        return make(sandbox, wanted, forget=forget)

    monkeypatch.setattr(Sandbox, "_make", counted)
    plain, other = dataset("dice"), dataset("dice", {"num_dice": 3})
    assert question(one, plain) != question(one, other)
    assert question(one, plain) != question(one, other)
    assert len(ordered) == 2
    plain, other = replace(plain, group="dice"), replace(other, group="dice")
    assert question(one, plain) != question(one, other)
    assert question(one, plain) != question(one, other)
    assert len(ordered) == 6


def test_the_precision_of_decimal_numbers_is_that_of_each_dataset(one: Sandboxes) -> None:
    """`decimal_arithmetic` sets the precision of its process, which here is too low for the sums."""
    sums = dataset("decimal_chain_sum", {"min_digits": 20, "max_digits": 20})
    job = Job(module="inside.gym.dataset", payload={"index": 3}, needs=sums)
    before = one.run(JobKind.GYM, job).answer
    assert question(one, dataset("decimal_arithmetic", {"precision": 8}))
    assert one.run(JobKind.GYM, job).answer == before


def test_the_memory_of_a_forgotten_object_is_freed() -> None:
    source = """
import socket, sys, types, weakref
from rollouts.sandbox.inside.server import _Server

class Graph:
    def __init__(self):
        self.itself = self

def prepare(payload):
    graph = Graph()
    made.append(weakref.ref(graph))
    return graph

made = []
sys.modules["graphs"] = types.SimpleNamespace(prepare=prepare)
server = _Server(socket.socketpair()[0], may_read_files=False)
order = {"module": "graphs", "payload": {}, "memory_bytes": 1 << 46, "ends_after": 60}
server._prepare(order | {"prepare": "first", "forget": []})
server._prepare(order | {"prepare": "second", "forget": ["first"]})
print([graph() is None for graph in made])
"""
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[True, False]", ran.stderr


def test_a_preparation_without_end_ends_its_server(one: Sandboxes) -> None:
    no_solution: dict[str, JsonValue] = {"min_value": 1, "max_value": 1}  # no four ones make 24
    payload = _with_config("puzzle24", no_solution)
    endless = replace(dataset("puzzle24", within=timedelta(seconds=2)), payload=payload)
    assert question(one, dataset("gcd"))
    with one.borrow(JobKind.GYM) as sandbox:
        first = psutil.Process(sandbox.pid)
        family = [first, *first.children(recursive=True)]
    with pytest.raises(SandboxUnavailable, match="within 2 s"):
        question(one, endless)
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []
    assert question(one, dataset("gcd"))


def test_a_lower_limit_of_the_machine_bounds_preparations() -> None:
    source = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))
from rollouts.sandbox import Sandboxes, SandboxSettings
from tests.rollouts.sandbox.test_preparations import dataset, question
sandboxes = Sandboxes(SandboxSettings(most=1))
print(question(sandboxes, dataset("gcd", memory_bytes=1 << 46)))
sandboxes.close()
"""
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert "Greatest Common Divisor" in ran.stdout, ran.stderr


def test_keys_differ_by_every_parameter() -> None:
    plain = Preparation(module="m", group="g", payload={"a": 1, "b": 2})
    assert plain.key == Preparation(module="m", group="g", payload={"b": 2, "a": 1}).key
    others = [
        Preparation(module="n", group="g", payload={"a": 1, "b": 2}),
        Preparation(module="m", group="h", payload={"a": 1, "b": 2}),
        Preparation(module="m", group="g", payload={"a": 1, "b": 3}),
    ]
    assert len({plain.key, *(each.key for each in others)}) == 4
