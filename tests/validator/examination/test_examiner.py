"""Examiner processes that die, hang or have no policy: no item is lost, and no node is blamed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from protocol.checkpoints import VersionFile, folder_files, version_digest
from protocol.errors import MusterError, Unavailable
from protocol.identifiers import Digest, digest
from protocol.runtime.budgets import KeepRule
from protocol.runtime.clock import SystemClock
from protocol.verdicts import Outcome
from protocol.wire.runs import CheckpointRef
from rollouts.checks import CheckedVersion
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import write_rollouts
from rollouts.precision import Arithmetic
from rollouts.recompute.place import MODEL_FOLDERS
from rollouts.task.policies import HeldPolicy
from rollouts.task.version_lock import Hold, VersionLock
from tests.validator.examination.conftest import ALL, checkpoint, facts
from validator.examination.child import ExaminerProcess
from validator.examination.examiner import LocalExaminer
from validator.examination.interface import Conclusion, Examination, NotJudged
from validator.examination.numerics import VerifiableClasses
from validator.examination.settings import ExaminerSettings

SANDBOXLESS = """
from rollouts.sandbox import Sandboxes, SandboxUnavailable
def none(self, kind): raise SandboxUnavailable("no sandbox starts here")
Sandboxes._start = none
from validator.examination.process import main
main()
"""
"""Program of an examiner process that can't start sandboxes, also on a machine that supports them."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def settings(version: CheckedVersion, tmp_path_factory: pytest.TempPathFactory) -> ExaminerSettings:
    return ExaminerSettings(home=tmp_path_factory.mktemp("home"), policies=version.folder.parent)


@pytest.fixture(scope="module")
def abandoned() -> Path:
    """Makes the folder that an examiner process leaves if it is killed while it proves a numerics class."""
    return Path(tempfile.mkdtemp(prefix=MODEL_FOLDERS))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def examiner(settings: ExaminerSettings, abandoned: Path) -> AsyncIterator[LocalExaminer]:
    """Returns one examiner for all tests, because a process takes seconds to start."""
    async with LocalExaminer(settings, clock=SystemClock()) as found:
        yield found


@pytest.fixture
def examination(version: CheckedVersion, honest: RolloutFile, tmp_path: Path) -> Examination:
    write_rollouts(tmp_path / "file", honest)
    told = facts(version, honest, path=tmp_path / "file")
    return Examination(facts=told, file=tmp_path / "file", checkpoint=checkpoint(version), draw=ALL)


def process_of(examiner: LocalExaminer) -> ExaminerProcess:
    [process] = examiner._processes
    return process


async def natural(_: Digest) -> bool:
    return False


async def accepted(found: Awaitable[Conclusion | NotJudged]) -> None:
    conclusion = await found
    assert isinstance(conclusion, Conclusion), conclusion
    assert conclusion.outcome is Outcome.ACCEPTED, conclusion.words


async def test_files_are_examined_in_a_separate_process(
    examiner: LocalExaminer, examination: Examination, abandoned: Path
) -> None:
    assert not abandoned.exists()
    await asyncio.gather(*(accepted(examiner.examine(examination, is_copy=natural)) for _ in range(3)))
    assert process_of(examiner).pid not in {None, os.getpid()}


def killer(examiner: LocalExaminer, *, times: int) -> Callable[[Digest], Awaitable[bool]]:
    """Kills the examiner during its work a number of times."""
    left = [times]

    async def is_copy(_: Digest) -> bool:
        pid = process_of(examiner).pid
        if left[0] and pid is not None:
            left[0] -= 1
            os.kill(pid, signal.SIGKILL)
        return False

    return is_copy


async def test_an_examiner_tests_its_sandbox_and_arithmetic_without_a_submission(
    examiner: LocalExaminer,
) -> None:
    assert await examiner.try_out() is None
    pid = process_of(examiner).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(0.2, os.kill, pid, signal.SIGKILL)
    found = await examiner.try_out()
    assert found is not None
    assert (found.code, found.retryable) == ("examiner-died", True)
    assert await examiner.try_out() is None, "another process has replaced it"


async def test_a_machine_without_a_sandbox_is_detected_before_any_file_is_read(
    settings: ExaminerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validator.examination.child.PROGRAM", (sys.executable, "-c", SANDBOXLESS))
    async with LocalExaminer(settings, clock=SystemClock()) as examiner:
        found = await examiner.try_out()
    assert found is not None
    assert found.code == "no-sandbox"
    assert "bubblewrap" in found.hint


async def test_a_killed_examiner_is_replaced_and_the_file_is_still_examined(
    examiner: LocalExaminer, examination: Examination
) -> None:
    before = process_of(examiner).pid
    await accepted(examiner.examine(examination, is_copy=killer(examiner, times=1)))
    assert process_of(examiner).pid != before


async def test_an_error_of_the_service_is_returned_to_it_and_the_process_continues(
    examiner: LocalExaminer, examination: Examination
) -> None:
    async def no_store(_: Digest) -> bool:
        raise Unavailable("no Redis")

    before = process_of(examiner).pid
    with pytest.raises(Unavailable, match="no Redis"):
        await examiner.examine(examination, is_copy=no_store)
    await accepted(examiner.examine(examination, is_copy=natural))
    assert process_of(examiner).pid == before


async def test_missing_or_mismatched_versions_are_not_judged(examiner: LocalExaminer, examination: Examination) -> None:
    unknown = digest(b"\6" * 32)
    elsewhere = examination.checkpoint.model_copy(update={"digest": unknown})
    work = replace(examination.facts.work, checkpoint=unknown)
    there = replace(examination, checkpoint=elsewhere, facts=replace(examination.facts, work=work))
    found = await examiner.examine(there, is_copy=natural)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == ("no-policy", True)
    mixed = replace(examination, facts=there.facts)
    found = await examiner.examine(mixed, is_copy=natural)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == ("bad-version-folder", False)


SCRIPT = """
import json, sys, time
def say(report):
    content = json.dumps({"report": report}).encode()
    sys.stdout.buffer.write(len(content).to_bytes(4, "big") + content)
    sys.stdout.buffer.flush()
def hear():
    return sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), "big"))
hear()
"""
READY = 'say({"kind": "ready"}); hear(); '
ENDS = {
    "it dies over every file": (READY, "examiner-died", False),
    "it sends messages of another format": (READY + 'say({"kind": "?"}); hear()', "examiner-died", False),
    "it never answers": (READY + "time.sleep(60)", "took-too-long", True),
    "it never starts": ("sys.exit(1)", "examiner-unavailable", True),
    "it fails": (
        READY + 'say({"kind": "answer", "not_judged": {"code": "x", "why": "y", "retryable": True}})', "x", True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("script", "code", "retryable"), ENDS.values(), ids=ENDS)
async def test_the_end_of_an_examiner_process_is_never_a_verdict(
    script: str,
    code: str,
    *,
    retryable: bool,
    settings: ExaminerSettings,
    examination: Examination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("validator.examination.child.PROGRAM", (sys.executable, "-c", SCRIPT + script))
    told = replace(settings, deadline=timedelta(seconds=0.3 if code == "took-too-long" else 60))
    async with LocalExaminer(told, clock=SystemClock()) as examiner:
        found = await examiner.examine(examination, is_copy=natural)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == (code, retryable)


ASKS = 'say({"kind": "question", "fingerprint": "0x' + "00" * 32 + '"}); hear(); '
PROGRESS = 'say({"kind": "progress"}); '
ANSWER = 'say({"kind": "answer", "not_judged": {"code": "x", "why": "y", "retryable": True}}); hear()'


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (READY + ASKS + PROGRESS + ASKS + PROGRESS + ASKS + PROGRESS + ANSWER, "x"),
        (READY + PROGRESS + ASKS + ASKS + "time.sleep(60)", "took-too-long"),
    ],
    ids=["it reports progress", "it stops"],
)
async def test_the_time_limit_of_an_examination_starts_again_with_each_progress(
    script: str, code: str, settings: ExaminerSettings, examination: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validator.examination.child.PROGRAM", (sys.executable, "-c", SCRIPT + script))
    loop = asyncio.get_running_loop()
    usual, turned = loop.time, 0.0

    async def forty_seconds(_: Digest) -> bool:
        nonlocal turned
        turned += 40
        return False

    monkeypatch.setattr(loop, "time", lambda: usual() + turned)
    async with LocalExaminer(replace(settings, deadline=timedelta(seconds=60)), clock=SystemClock()) as examiner:
        found = await examiner.examine(examination, is_copy=forty_seconds)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == (code, True)


FAILED_CLASS = "vllm-0.32.0/bfloat16/cpu-avx2"


@pytest.mark.parametrize(("named", "kept"), [(FAILED_CLASS, ()), ("", (FAILED_CLASS,))])
async def test_a_class_that_an_examiner_failed_to_reproduce_is_no_longer_reported(
    named: str,
    kept: tuple[str, ...],
    settings: ExaminerSettings,
    examination: Examination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reply = f'{{"code": "class-not-reproduced", "why": "y", "retryable": False, "failed_class": "{named}"}}'
    script = READY + f'say({{"kind": "answer", "not_judged": {reply}}})'
    monkeypatch.setattr("validator.examination.child.PROGRAM", (sys.executable, "-c", SCRIPT + script))
    examiner = LocalExaminer(settings, clock=SystemClock())
    examiner._classes = VerifiableClasses(
        settings.vllm, clock=SystemClock(), find=lambda _: [Arithmetic.parse(FAILED_CLASS)]
    )
    async with examiner:
        assert examiner.numerics() == (FAILED_CLASS,)
        assert isinstance(await examiner.examine(examination, is_copy=natural), NotJudged)
        assert examiner.numerics() == kept


async def test_a_version_is_fetched_once_and_locked_while_in_use(
    settings: ExaminerSettings, version: CheckedVersion, examination: Examination, tmp_path: Path
) -> None:
    fetched: list[Digest] = []

    async def fetch(run: Digest, checkpoint: CheckpointRef, to: Path) -> None:
        del run
        fetched.append(checkpoint.digest)
        shutil.copytree(version.folder, to)

    alone = replace(settings, home=tmp_path / "home", policies=None)
    examiner = LocalExaminer(alone, clock=SystemClock(), fetch=fetch)
    folders = await asyncio.gather(*(_folder(examiner, examination) for _ in range(3)))
    assert fetched == [version.digest]
    assert {*folders} == {tmp_path / "home" / "checkpoints" / version.digest}
    (folders[0] / "config.json").write_text("{}")  # damage is noticed, and the version is fetched again
    again = await _folder(examiner, examination)
    assert fetched == [version.digest] * 2
    assert folder_files(again) == folder_files(version.folder)


async def test_a_version_being_verified_is_not_removed(
    settings: ExaminerSettings, version: CheckedVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An examination begins while others end, and at most one unused version is kept."""

    async def fetch(run: Digest, checkpoint: CheckpointRef, to: Path) -> None:
        del run
        to.mkdir()
        (to / "w").write_bytes(b"%d" % checkpoint.version)

    def reference(number: int) -> CheckpointRef:
        made = version_digest([VersionFile("w", 1, hashlib.sha256(b"%d" % number).hexdigest())])
        return checkpoint(version).model_copy(update={"version": number, "digest": made})

    told = replace(settings, home=tmp_path, policies=None, keep=KeepRule(most=1))
    versions = LocalExaminer(told, clock=SystemClock(), fetch=fetch)._versions
    run, checking, go = digest(b"r" * 32), threading.Event(), threading.Event()
    async with versions.folder(run, reference(1)):
        pass
    unchanged = HeldPolicy.check_unchanged

    def slowly(policy: HeldPolicy) -> None:
        checking.set()
        assert go.wait(60)
        unchanged(policy)

    monkeypatch.setattr(HeldPolicy, "check_unchanged", slowly)

    async def used_again() -> None:
        async with versions.folder(run, reference(1)) as folder:
            lock = VersionLock(folder.parent, reference(1).digest)
            assert not lock.take(Hold.EXCLUSIVE), "the version is locked"
            lock.release()

    again = asyncio.create_task(used_again())
    assert await asyncio.to_thread(checking.wait, 60)
    for number in (2, 3):
        async with versions.folder(run, reference(number)):
            pass
    go.set()
    await again


async def test_a_local_version_changed_on_disk_is_noticed_before_it_is_used(
    settings: ExaminerSettings, version: CheckedVersion, examination: Examination, tmp_path: Path
) -> None:
    shutil.copytree(version.folder, tmp_path / "policies" / "7")
    told = replace(settings, home=tmp_path / "home", policies=tmp_path / "policies")
    examiner = LocalExaminer(told, clock=SystemClock())
    folder = await _folder(examiner, examination)
    assert await _folder(examiner, examination) == folder == tmp_path / "policies" / "7"
    [weights] = folder.glob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(MusterError):  # no relay has it
        await _folder(examiner, examination)
    weights.write_bytes(content)
    assert await _folder(examiner, examination) == folder


async def _folder(examiner: LocalExaminer, examination: Examination) -> Path:
    async with examiner._folder(examination) as folder:
        return folder
