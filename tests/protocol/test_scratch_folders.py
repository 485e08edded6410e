"""Temporary folders: a killed process's folder is removed, that of a running process stays."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from protocol.runtime import scratch_folders
from protocol.runtime.scratch_folders import remove_abandoned, scratch_folder

PREFIX = "muster-test-scratch-"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder of this test the system's folder for temporary files, also for child processes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_folder_of_a_killed_process_is_removed_and_others_stay(temporary: Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    (temporary / f"{PREFIX}file").touch()
    (temporary / "muster-other-1").mkdir()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with scratch_folder(PREFIX) as living:
        holder = context.Process(target=_hold, args=(theirs,))
        holder.start()
        assert ours.poll(60)
        abandoned = Path(ours.recv())
        assert remove_abandoned(PREFIX) == 0
        assert (abandoned / "file").exists()
        holder.kill()
        holder.join()
        with scratch_folder(PREFIX) as next_one:
            assert not abandoned.exists()
            assert list(next_one.iterdir()) == []
        assert living.exists()
    assert sorted(each.name for each in temporary.iterdir()) == [
        "elsewhere",
        "muster-other-1",
        f"{PREFIX}file",
        f"{PREFIX}link",
    ]
    assert (elsewhere / "kept").exists()


def _hold(pipe: Connection) -> None:
    with scratch_folder(PREFIX) as folder:
        (folder / "file").touch()
        pipe.send(str(folder))
        pipe.recv()


def test_a_folder_of_another_user_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = temporary / f"{PREFIX}theirs"
    theirs.mkdir()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert remove_abandoned(PREFIX) == 0
    assert theirs.exists()


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def removing(folder: Path) -> int:
        descriptor = os.open(folder, os.O_RDONLY)
        made.append(folder)
        if len(made) == 1:
            folder.rmdir()
        return descriptor

    monkeypatch.setattr(scratch_folders, "_open", removing)
    with scratch_folder(PREFIX) as folder:
        assert folder.exists()
    assert made[0] != folder
    assert list(temporary.iterdir()) == []
