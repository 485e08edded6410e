import multiprocessing
import os
import stat
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from protocol.runtime.files import (
    FileLocked,
    atomic_file,
    create_atomically,
    locked_file,
    try_lock,
    write_atomically,
)


@pytest.mark.parametrize("content", [b"new", "new", iter([b"n", b"ew"])])
def test_an_atomic_write_replaces_content_and_mode(tmp_path: Path, content: bytes | str | Iterator[bytes]) -> None:
    path = tmp_path / "file"
    path.write_text("old and longer")
    path.chmod(0o600)
    write_atomically(path, content, mode=0o644)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failed_atomic_write_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with atomic_file(path) as file:
            file.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_half()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_atomic_write_replaces_a_leftover_file_and_follows_no_link(tmp_path: Path) -> None:
    path, left = tmp_path / "file", tmp_path / ".file.part"
    left.write_text("left by a crash, and longer than the content")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    left.symlink_to(tmp_path / "elsewhere")
    write_atomically(path, b"newer")
    assert (path.read_bytes(), (tmp_path / "elsewhere").exists(), left.is_symlink()) == (b"newer", False, False)
    left.write_text("")
    with left.open() as reader:
        write_atomically(path, b"secret")
        assert reader.read() == "", "whoever had the leftover file open does not see the new content"


def test_an_atomic_creation_never_overwrites_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    create_atomically(path, b"first")
    with pytest.raises(FileExistsError):
        create_atomically(path, b"second")
    assert path.read_bytes() == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_a_file_lock_excludes_other_processes_until_its_holder_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(path, held, done))
    holder.start()
    try:
        assert held.wait(30)
        with pytest.raises(FileLocked, match="another process holds"), locked_file(path):
            pass
    finally:
        holder.kill()  # the kernel releases the lock even if the process is killed
        holder.join()
    with locked_file(path):
        pass


def _hold(path: Path, held: Event, done: Event) -> None:
    with locked_file(path):
        held.set()
        done.wait()


def test_shared_file_locks_exclude_an_exclusive_one(tmp_path: Path) -> None:
    first, second, third = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(3))
    try:
        assert try_lock(first, shared=True)
        assert try_lock(second, shared=True)
        assert not try_lock(third)
    finally:
        for descriptor in (first, second):
            os.close(descriptor)
    assert try_lock(third)
    os.close(third)
