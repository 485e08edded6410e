"""The digest of a version, by which seeds, the checkpoint broadcast and the ledger name it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.checkpoints import MOST_FILES, VersionFile, check_path, folder_files, version_digest
from protocol.errors import InvalidInput
from protocol.identifiers import digest

HASH = "ab" * 32


def test_the_version_digest_is_over_the_sorted_lines() -> None:
    files = [VersionFile("model.safetensors", 7, HASH), VersionFile("config.json", 2, "cd" * 32)]
    lines = f"config.json 2 {'cd' * 32}\nmodel.safetensors 7 {HASH}\n"
    assert version_digest(files) == digest(hashlib.sha256(lines.encode()).digest())


@given(st.permutations([VersionFile(f"f{i}", i, HASH) for i in range(6)]))
def test_the_version_digest_does_not_depend_on_the_order_of_files(files: list[VersionFile]) -> None:
    assert version_digest(files) == version_digest(reversed(files))


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/", "a//b", "..", "a/../b", ".hidden", "a/.b", "-rf", "a b", "a\nb", "a\\b", "ä", "a\0", "x" * 256],
)
def test_paths_outside_the_folder_are_refused(path: str) -> None:
    with pytest.raises(InvalidInput):
        check_path(path)


@pytest.mark.parametrize(
    "files",
    [
        [],
        [VersionFile("a", 1, HASH), VersionFile("a", 1, HASH)],
        [VersionFile("a", -1, HASH)],
        [VersionFile("a", 1, HASH.upper())],
        [VersionFile("a", 1, HASH[:-1])],
        [VersionFile(f"f{i}", 1, HASH) for i in range(MOST_FILES + 1)],
    ],
)
def test_a_malformed_file_list_has_no_digest(files: list[VersionFile]) -> None:
    with pytest.raises(InvalidInput):
        version_digest(files)


def test_a_folder_is_hashed_completely_except_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_bytes(b"22")
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / ".part").write_bytes(b"no")
    assert folder_files(tmp_path) == [
        VersionFile("a", 1, hashlib.sha256(b"1").hexdigest()),
        VersionFile("sub/b", 2, hashlib.sha256(b"22").hexdigest()),
    ]


def test_symbolic_links_are_not_part_of_a_version(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput, match="regular file"):
        folder_files(tmp_path)
