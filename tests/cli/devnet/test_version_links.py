"""Relays share the files of complete versions with the trainer's folder; copies that differ are left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.devnet.directory import DevnetDirectory
from cli.devnet.version_links import share_versions

WEIGHTS = os.urandom(3 << 20)


@pytest.fixture
def directory(tmp_path: Path) -> DevnetDirectory:
    """Returns a devnet whose trainer has written version 3."""
    made = DevnetDirectory(tmp_path)
    version = made.policies / "3"
    version.mkdir(parents=True)
    (version / "model.safetensors").write_bytes(WEIGHTS)
    (version / "config.json").write_text("{}")
    return made


def held(directory: DevnetDirectory, content: bytes, *, version: str = "3.0", relay: int = 1) -> Path:
    """Writes a relay's copy of the weights."""
    path = directory.relays / str(relay) / version / "files" / "model.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_a_complete_copy_becomes_a_link_and_the_versions_time_of_arrival_stays(directory: DevnetDirectory) -> None:
    copies = [held(directory, WEIGHTS, relay=relay) for relay in (1, 2)]
    for copy in copies:
        os.utime(copy.parents[1], (1_000, 1_000))
        os.utime(copy.parent, (2_000, 2_000))
    assert share_versions(directory) >= 2 * len(WEIGHTS)
    original = directory.policies / "3" / "model.safetensors"
    assert {copy.stat().st_ino for copy in copies} == {original.stat().st_ino}
    assert copies[0].read_bytes() == WEIGHTS
    assert (copies[0].parents[1].stat().st_mtime, copies[0].parent.stat().st_mtime) == (1_000, 2_000)
    assert [path.name for path in copies[0].parent.iterdir()] == ["model.safetensors"]
    assert share_versions(directory) == 0


@pytest.mark.parametrize(
    "content",
    [WEIGHTS[:-1], WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1]), bytes(len(WEIGHTS)), b"{}"],
    ids=["shorter", "one byte differs", "reserved, not fetched", "small"],
)
def test_a_copy_that_is_not_complete_is_left_alone(directory: DevnetDirectory, content: bytes) -> None:
    copy = held(directory, content)
    assert share_versions(directory) == 0
    assert copy.stat().st_nlink == 1


def test_a_removed_original_leaves_the_relays_copy(directory: DevnetDirectory) -> None:
    copy = held(directory, WEIGHTS)
    share_versions(directory)
    (directory.policies / "3" / "model.safetensors").unlink()
    assert share_versions(directory) == 0
    assert copy.read_bytes() == WEIGHTS


def test_an_interrupted_link_is_finished_by_the_next_call(directory: DevnetDirectory) -> None:
    copy = held(directory, WEIGHTS)
    os.link(directory.policies / "3" / "model.safetensors", copy.with_name(".shared"))
    assert share_versions(directory) >= len(WEIGHTS)
    assert not copy.with_name(".shared").exists()


def test_a_devnet_without_versions_shares_nothing(tmp_path: Path) -> None:
    assert share_versions(DevnetDirectory(tmp_path)) == 0
