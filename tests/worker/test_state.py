"""Files that strangers wrote into the worker's directory can always be removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.errors import Conflict
from protocol.identity.keys import Key
from protocol.runtime.files import NewerFormat
from worker.logs.store import LogStore, open_kept
from worker.state import StateDirectory, StateInUse, StateLock, remove_tree


def test_a_directory_of_any_depth_is_removed(tmp_path: Path) -> None:
    """The tree is deeper than Python can remove recursively.

    Its path is longer than the kernel accepts.
    """
    volume = tmp_path / "volume"
    volume.mkdir()
    descriptor = os.open(volume, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=descriptor)
        inner = os.open("deep", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    remove_tree(volume)
    assert not volume.exists()


def test_links_are_removed_and_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "kept").write_text("the contributor's")
    volume = tmp_path / "volume"
    (volume / "a" / "b").mkdir(parents=True)
    (volume / "link").symlink_to(outside)
    (volume / "a" / "link").symlink_to(outside)
    (volume / "a" / "b" / "file").symlink_to(outside / "kept")
    os.mkfifo(volume / "a" / "pipe")
    remove_tree(volume)
    assert not volume.exists()
    assert (outside / "kept").read_text() == "the contributor's"
    assert outside.stat().st_mode & 0o777 == 0o755


def test_a_link_in_place_of_the_directory_is_removed_without_its_target(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "volume").symlink_to(outside)
    remove_tree(tmp_path / "volume")
    assert not (tmp_path / "volume").is_symlink()
    assert outside.is_dir()


def test_directories_without_permissions_are_removed(tmp_path: Path) -> None:
    inner = tmp_path / "volume" / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0)
    inner.parent.chmod(0)
    remove_tree(tmp_path / "volume")
    assert not (tmp_path / "volume").exists()
    remove_tree(tmp_path / "volume")


@pytest.mark.parametrize(
    "identifier", ["", ".", "..", "../outside", "{tmp}/outside", "A" * 32, "a" * 32 + "\n", "b" * 32]
)
def test_only_a_known_assignments_id_names_a_log(tmp_path: Path, identifier: str) -> None:
    """The id comes from the orchestrator.

    The orchestrator must not choose where the worker reads and writes.
    """
    logs = tmp_path / "logs"
    (tmp_path / "outside").mkdir()
    LogStore(logs / ("a" * 32)).close()
    assert open_kept(logs, identifier.replace("{tmp}", str(tmp_path))) is None
    assert list((tmp_path / "outside").iterdir()) == []
    kept = open_kept(logs, "a" * 32)
    assert kept is not None
    kept.close()


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        ({}, None),  # of a release that stored no version
        ({"format": 1}, None),
        ({"format": 2}, NewerFormat),
        ({"format": "2"}, NewerFormat),
        ({"node": Key.generate().address}, StateInUse),
    ],
)
def test_a_state_directory_of_a_newer_release_is_refused_and_not_changed(
    tmp_path: Path, content: dict[str, object], refused: type[Conflict] | None
) -> None:
    state, node = StateDirectory(tmp_path), Key.generate().address
    state.write("worker", {"node": node, **content})
    before = (tmp_path / "worker.json").read_bytes()
    if refused is None:
        with StateLock(state, node):
            assert state.read("worker") == {"node": node, "format": 1}
        return
    for _ in range(2):  # the refused start has released the lock
        with pytest.raises(refused), StateLock(state, node):
            pass
    assert (tmp_path / "worker.json").read_bytes() == before
