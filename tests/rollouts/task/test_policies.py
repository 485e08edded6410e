"""Versions on the shared volume: used ones match their digest and are not removed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.checkpoints import VersionFile, folder_files, version_digest
from protocol.identifiers import Digest, address, run_id
from protocol.runtime.budgets import KeepRule
from protocol.runtime.clock import SystemClock
from protocol.wire.runs import CheckpointRef
from rollouts.errors import BadVersionFolder
from rollouts.task.policies import INCOMING, DamagedPolicy, NoPolicy, PolicyStore
from rollouts.task.version_lock import Hold, VersionLock

RUN = run_id("test")


def version(number: int) -> tuple[CheckpointRef, bytes]:
    """Returns a version whose only file contains its number."""
    content = b"weights %d" % number
    return reference(content, number), content


def reference(content: bytes, number: int) -> CheckpointRef:
    digest = version_digest([VersionFile("w", len(content), hashlib.sha256(content).hexdigest())])
    return CheckpointRef(version=number, attempt=0, digest=digest, block=1, publisher=address("0x" + "ab" * 20))


class Source:
    """Fetches from memory at a chosen pace, and counts fetches."""

    def __init__(self, content: Callable[[CheckpointRef], bytes]) -> None:
        self.content = content
        self.fetched: list[int] = []
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, run: Digest, checkpoint: CheckpointRef, to: Path) -> None:
        self.fetched.append(checkpoint.version)
        self.asked.set()
        await self.go.wait()
        partial = to.with_name(f".{to.name}.partial")
        partial.mkdir()
        (partial / "w").write_bytes(self.content(checkpoint))
        partial.rename(to)


def honest(checkpoint: CheckpointRef) -> bytes:
    return b"weights %d" % checkpoint.version


def store(shared: Path, fetch: Source | None, *, keep: int | KeepRule = 2) -> PolicyStore:
    rule = KeepRule(most=keep) if isinstance(keep, int) else keep
    return PolicyStore(shared, fetch=fetch, clock=SystemClock(), keep=rule)


async def test_a_version_is_fetched_once_and_matches_its_digest(tmp_path: Path) -> None:
    source = Source(honest)
    wanted, content = version(1)
    for _ in range(2):
        held = await store(tmp_path, source).hold(RUN, wanted)
        assert (held.folder / "w").read_bytes() == content
        held.release()
    assert source.fetched == [1]


async def test_two_tasks_on_one_volume_fetch_a_version_once(tmp_path: Path) -> None:
    source = Source(honest)
    source.go.clear()
    wanted, _ = version(1)
    holding = [asyncio.create_task(store(tmp_path, source).hold(RUN, wanted)) for _ in range(2)]
    await source.asked.wait()
    source.go.set()
    first, second = await asyncio.gather(*holding)
    assert first.folder == second.folder
    assert source.fetched == [1]


async def test_a_folder_placed_by_another_program_is_verified(tmp_path: Path) -> None:
    wanted, content = version(1)
    folder = tmp_path / "checkpoints" / wanted.digest
    folder.mkdir(parents=True)
    (folder / "w").write_bytes(content)
    (await store(tmp_path, None).hold(RUN, wanted)).release()
    (folder / "w").write_bytes(content + b"!")
    with pytest.raises(BadVersionFolder, match="has the digest"):
        await store(tmp_path, None).hold(RUN, wanted)
    (folder / "x").symlink_to("/etc/passwd")
    with pytest.raises(BadVersionFolder, match="is not a version"):
        await store(tmp_path, None).hold(RUN, wanted)


async def test_a_damaged_folder_is_fetched_again(tmp_path: Path) -> None:
    """Damage may come from a power cut, or from another program that wrote to the volume."""
    source = Source(honest)
    wanted, content = version(1)
    held = await store(tmp_path, source).hold(RUN, wanted)
    held.release()
    (held.folder / "w").write_bytes(b"")
    (await store(tmp_path, source).hold(RUN, wanted)).release()
    assert (held.folder / "w").read_bytes() == content
    held.folder.rename(tmp_path / "elsewhere")
    held.folder.symlink_to(tmp_path / "elsewhere")
    (await store(tmp_path, source).hold(RUN, wanted)).release()
    assert not held.folder.is_symlink()
    assert (tmp_path / "elsewhere" / "w").read_bytes() == content
    assert source.fetched == [1, 1, 1]


async def test_a_damaged_folder_in_use_by_another_task_is_kept_until_released(tmp_path: Path) -> None:
    source = Source(honest)
    wanted, content = version(1)
    other = await store(tmp_path, source).hold(RUN, wanted)
    (other.folder / "w").write_bytes(b"")
    with pytest.raises(DamagedPolicy) as raised:
        await store(tmp_path, source).hold(RUN, wanted)
    assert raised.value.retryable
    assert (other.folder / "w").read_bytes() == b""
    other.release()
    (await store(tmp_path, source).hold(RUN, wanted)).release()
    assert (other.folder / "w").read_bytes() == content


async def test_a_version_that_arrives_corrupt_twice_is_given_up(tmp_path: Path) -> None:
    source = Source(lambda _: b"something else")
    with pytest.raises(BadVersionFolder, match="has the digest"):
        await store(tmp_path, source).hold(RUN, version(1)[0])
    assert source.fetched == [1, 1]


async def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    wanted, _ = version(1)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / f".{wanted.digest}.lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic links"):
        await store(tmp_path, Source(honest)).hold(RUN, wanted)
    assert not (tmp_path / "made").exists()


async def test_only_the_newest_incomplete_fetch_is_kept(tmp_path: Path) -> None:
    policies = store(tmp_path, Source(honest))
    for number in range(4):
        broken = tmp_path / "checkpoints" / f"{INCOMING}{version(number)[0].digest}"
        broken.mkdir(parents=True)
        (broken / "w").write_bytes(b"half")
        os.utime(broken, (1_000_000 + number, 1_000_000 + number))
    await policies.tidy()
    left = [path for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()]
    assert left == [broken]


async def test_without_relays_a_missing_version_is_reported_with_its_expected_path(tmp_path: Path) -> None:
    with pytest.raises(NoPolicy, match="checkpoints"):
        await store(tmp_path, None).hold(RUN, version(1)[0])


async def test_a_change_after_the_verification_is_noticed(tmp_path: Path) -> None:
    held = await store(tmp_path, Source(honest)).hold(RUN, version(1)[0])
    held.check_unchanged()
    file = held.folder / "w"
    before = file.stat()
    file.write_bytes(bytes(before.st_size))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # a writer can hide the change like this
    with pytest.raises(BadVersionFolder, match="changed"):
        held.check_unchanged()
    held.release()


async def test_old_versions_are_removed_and_those_in_use_are_kept(tmp_path: Path) -> None:
    policies = store(tmp_path, Source(honest), keep=1)
    held = [await policies.hold(RUN, version(number)[0]) for number in range(4)]
    for age, policy in enumerate(reversed(held)):
        os.utime(policy.folder, (1_000_000 - age, 1_000_000 - age))
    for policy in held[1:]:
        policy.release()
    await policies.tidy()
    there = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()}
    assert there == {held[0].digest, held[3].digest}  # the version in use, and the newest
    assert version_digest(folder_files(held[0].folder)) == held[0].digest
    held[0].release()
    await policies.tidy()
    assert not held[0].folder.exists()


async def test_versions_above_the_disk_budget_are_removed_and_can_be_fetched_again(tmp_path: Path) -> None:
    source = Source(lambda checkpoint: b"%1000d" % checkpoint.version)
    wanted = [reference(b"%1000d" % number, number) for number in range(3)]
    policies = store(tmp_path, source, keep=KeepRule(most=9, budget=2500))
    for each in wanted:
        (await policies.hold(RUN, each)).release()
        os.utime(tmp_path / "checkpoints" / each.digest, (1_000_000 + each.version, 1_000_000 + each.version))
    there = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()}
    assert there == {each.digest for each in wanted[1:]}
    (await policies.hold(RUN, wanted[0])).release()
    assert source.fetched == [0, 1, 2, 0]


async def test_locks_of_removed_versions_are_removed(tmp_path: Path) -> None:
    policies = store(tmp_path, Source(honest), keep=1)
    for number in range(5):
        (await policies.hold(RUN, version(number)[0])).release()
        os.utime(tmp_path / "checkpoints" / version(number)[0].digest, (1_000_000 + number, 1_000_000 + number))
    await policies.tidy()
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {
        version(4)[0].digest,
        f".{version(4)[0].digest}.lock",
    }


async def test_a_lock_in_use_is_kept_until_its_version_has_arrived(tmp_path: Path) -> None:
    source = Source(honest)
    source.go.clear()
    policies = store(tmp_path, source)
    waiting = asyncio.create_task(policies.hold(RUN, version(1)[0]))
    await source.asked.wait()
    await store(tmp_path, None).tidy()
    assert (tmp_path / "checkpoints" / f".{version(1)[0].digest}.lock").exists()
    source.go.set()
    (await waiting).release()


def test_after_removal_of_a_lock_the_waiter_takes_its_replacement(tmp_path: Path) -> None:
    digest = version(1)[0].digest
    remover, waiter = VersionLock(tmp_path, digest), VersionLock(tmp_path, digest)
    assert remover.take(Hold.EXCLUSIVE)
    assert not waiter.take(Hold.SHARED)
    remover.remove()
    newcomer = VersionLock(tmp_path, digest)
    assert newcomer.take(Hold.EXCLUSIVE)
    remover.release()
    assert not waiter.take(Hold.SHARED)  # the removed lock is free, and no process looks at it
    newcomer.release()
    assert waiter.take(Hold.SHARED)
    last = VersionLock(tmp_path, digest)
    assert not last.take(Hold.EXCLUSIVE)
    last.release()
    waiter.release()
