"""Sandboxes of an installed package: only it is visible, the clock stands still, and random numbers repeat."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollouts.environments.code_digest import code_digest
from rollouts.environments.errors import BadOptions
from rollouts.sandbox import Isolation, Job, JobLimits, PackageJobs, Sandboxes, SandboxSettings, SandboxUnavailable

LIMITS = JobLimits(memory_bytes=2 << 30)
JOB = """
import os, random, time, uuid
import helper_module
from rollouts.adapters.job import answer, error_reply, figure

def run(payload):
    found = {"time": time.time(), "chance": [random.random(), uuid.uuid4().hex, os.urandom(4).hex(), hash("x")]}
    for name, path in payload.items():
        found[name] = os.path.exists(path)
    found["helper"] = helper_module.VALUE
    found["figures"] = [figure(1 / 3), figure(float("nan"))]
    found["errors"] = [error_reply(ValueError(object())), error_reply(KeyError())]
    return answer(lambda: found)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package and a single module beside a confidential file."""
    (tmp_path / "mine" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "job.py").write_text(JOB)
    (tmp_path / "mine" / "data" / "words.txt").write_text("a b")
    (tmp_path / "helper_module.py").write_text("VALUE = 7\n")
    (tmp_path / "secret.txt").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def sandboxes() -> Iterator[Sandboxes]:
    found = Sandboxes(SandboxSettings(most=1))
    yield found
    found.close()


def kind(*packages: str) -> PackageJobs:
    return PackageJobs(
        name="mine",
        modules=("mine.job",),
        libraries=("time_machine",),
        packages=packages,
        hint="pip install mine",
    )


def test_a_job_of_a_package_sees_only_it_and_repeats_exactly(package: Path, sandboxes: Sandboxes) -> None:
    files = {"words": str(package / "mine" / "data" / "words.txt"), "secret": str(package / "secret.txt")}
    job = Job(module="mine.job", payload=files, limits=LIMITS)
    outcomes = [sandboxes.run(kind("mine", "helper_module"), job) for _ in range(2)]
    sandboxes.close()
    again = Sandboxes(SandboxSettings(most=1))
    outcomes.append(again.run(kind("mine", "helper_module"), job))
    again.close()
    first, *others = [json.loads(outcome.answer) for outcome in outcomes]
    assert all(other == first for other in others)
    assert first["time"] == 1767225600.0
    seen = sandboxes.isolation is Isolation.PROCESS
    assert (first["words"], first["secret"], first["helper"]) == (True, seen, 7)
    assert first["figures"] == [0.333333, 0.0]
    assert first["errors"] == ["error: ValueError: <object object at 0x>", "error: KeyError"]


def test_a_missing_package_is_named_with_its_installation(package: Path, sandboxes: Sandboxes) -> None:
    with pytest.raises(SandboxUnavailable, match="the package missing_module, which a sandbox needs") as refused:
        sandboxes.run(kind("mine", "missing_module"), Job(module="mine.job", payload={}, limits=LIMITS))
    assert refused.value.hint == "pip install mine"


def test_the_code_digest_is_that_of_the_lines_of_sha256sum(package: Path) -> None:
    (package / "mine" / "__pycache__").mkdir(exist_ok=True)
    (package / "mine" / "__pycache__" / "job.pyc").touch()
    names = ["__init__.py", "data/words.txt", "job.py"]
    lines = [f"{hashlib.sha256((package / 'mine' / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    assert code_digest("mine") == hashlib.sha256("".join(lines).encode()).hexdigest()
    before = code_digest("helper_module")
    (package / "helper_module.py").write_text("VALUE = 8\n")
    assert code_digest("helper_module") != before
    for absent in ("missing_module", "mine.job", "", "a b"):
        with pytest.raises(BadOptions, match="no installed package"):
            code_digest(absent)
