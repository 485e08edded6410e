"""Uploads into a local directory: locking, verification, atomic publication, and crashes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.storage.receiver import OtherBytes, UploadReceiver, sweep
from protocol.errors import Conflict, TooLarge

CONTENT = b"0123456789" * 100
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "incoming").mkdir()
    return tmp_path / "incoming" / "x"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "objects" / "7" / "owner" / "ab" / "abcd"


def incoming(place: Path, target: Path) -> UploadReceiver:
    return UploadReceiver(place, target, size=len(CONTENT), sha256=SHA)


def send(place: Path, target: Path) -> None:
    coming = incoming(place, target)
    coming.write(CONTENT[:300])
    coming.write(CONTENT[300:])
    coming.finish()
    coming.close()


def test_an_object_appears_only_when_it_is_complete(place: Path, target: Path) -> None:
    coming = incoming(place, target)
    coming.write(CONTENT)
    assert not target.exists()
    coming.finish()
    coming.close()
    assert target.read_bytes() == CONTENT
    assert not place.exists()


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], b"x" + CONTENT[1:]])
def test_wrong_bytes_never_become_the_object(place: Path, target: Path, content: bytes) -> None:
    coming = incoming(place, target)
    coming.write(content)
    with pytest.raises(OtherBytes):
        coming.finish()
    coming.close()
    assert not place.exists()
    assert not target.exists()


def test_an_object_of_another_size_than_announced_is_refused(place: Path, target: Path) -> None:
    coming = UploadReceiver(place, target, size=len(CONTENT) + 1, sha256=SHA)
    coming.write(CONTENT)
    with pytest.raises(OtherBytes, match="1000 of the announced 1001 bytes"):
        coming.finish()
    coming.close()
    assert not target.exists()


def test_bytes_are_synced_to_disk_before_the_object_gets_its_name(
    place: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noting(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def noted(*arguments: object) -> object:
            done.append(name)
            return call(*arguments)

        return noted

    monkeypatch.setattr(os, "fsync", noting("fsync", os.fsync))
    monkeypatch.setattr(os, "link", noting("link", os.link))
    send(place, target)
    assert done[:3] == ["fsync", "link", "fsync"]


def test_the_first_excess_byte_ends_the_upload(place: Path, target: Path) -> None:
    coming = incoming(place, target)
    coming.write(CONTENT)
    with pytest.raises(TooLarge):
        coming.write(b"x")
    assert place.stat().st_size == len(CONTENT)
    coming.close()


def test_one_client_at_a_time_can_send_an_object(place: Path, target: Path) -> None:
    first = incoming(place, target)
    with pytest.raises(Conflict, match="another client"):
        incoming(place, target)
    first.close()
    send(place, target)


def test_a_repeated_upload_is_compared_and_changes_nothing(place: Path, target: Path) -> None:
    send(place, target)
    before = target.stat()
    send(place, target)
    forged = incoming(place, target)
    forged.write(b"x" * len(CONTENT))
    with pytest.raises(OtherBytes):
        forged.finish()
    forged.close()
    assert target.stat().st_mtime_ns == before.st_mtime_ns
    assert target.read_bytes() == CONTENT


KILLED = """
import os, signal, sys
from collections.abc import Callable
from pathlib import Path
from orchestrator.storage.receiver import UploadReceiver
place, target, sha, when = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
coming = UploadReceiver(place, target, size=1000, sha256=sha)
coming.write(b"0123456789" * 50)
if when == "half":
    os.kill(os.getpid(), signal.SIGKILL)
coming.write(b"0123456789" * 50)
link = os.link
def linked(*names):
    link(*names)
    os.kill(os.getpid(), signal.SIGKILL)
os.link = linked
coming.finish()
"""


@pytest.mark.parametrize(("when", "there"), [("half", False), ("linked", True)])
def test_a_killed_store_has_the_whole_object_or_none_and_accepts_it_again(
    place: Path, target: Path, when: str, there: bool
) -> None:
    command = [sys.executable, "-c", KILLED, str(place), str(target), SHA, when]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert place.exists()
    assert target.exists() is there
    send(place, target)
    assert target.read_bytes() == CONTENT


def test_a_partial_file_left_by_a_crash_is_not_written_to(place: Path, target: Path) -> None:
    send(place, target)
    os.link(target, place)  # killed between link and unlink
    other = target.with_name("other")
    coming = UploadReceiver(place, other, size=3, sha256=hashlib.sha256(b"abc").hexdigest())
    coming.write(b"abc")
    coming.finish()
    coming.close()
    assert (target.read_bytes(), other.read_bytes()) == (CONTENT, b"abc")


def test_abandoned_partial_files_are_deleted_and_active_ones_are_kept(place: Path, target: Path) -> None:
    left, young = place.with_name("left"), place.with_name("young")
    for path in (left, young):
        path.write_bytes(b"half")
    os.utime(left, (1, 1))
    under_way = incoming(place, target)
    under_way.write(CONTENT)
    os.utime(place, (1, 1))
    assert sweep(place.parent, older_than_s=3600) == 1
    assert not left.exists()
    assert young.exists()
    under_way.finish()
    under_way.close()
    assert target.read_bytes() == CONTENT
