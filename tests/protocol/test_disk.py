"""Disk space for files in progress is reserved in advance and checked at each write."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from protocol.runtime.disk import DiskReserved, DiskSpace


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    free = [1000]
    monkeypatch.setattr("protocol.runtime.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=free[0]))
    return free


def test_disk_space_is_reserved_until_the_claim_ends(tmp_path: Path, free: list[int]) -> None:
    space = DiskSpace(tmp_path, reserve=100)
    with space.claim(500) as claim:
        assert space.left == 400
        with pytest.raises(DiskReserved, match="401 bytes, but only 400 are free"), space.claim(401):
            pass
        with claim.writing(200):
            pass
        free[0] -= 200  # the written bytes now occupy the disk, so the claim must not count them again
        assert space.left == 400
    assert space.left == 700


def test_parallel_writes_share_the_free_space(tmp_path: Path, free: list[int]) -> None:
    space = DiskSpace(tmp_path, reserve=100)
    with space.claim(400) as one, space.claim(400) as other:
        free[0] = 500  # as if another program had filled the disk
        with one.writing(300), pytest.raises(DiskReserved), other.writing(101):
            pass
        with other.writing(400):
            pass


def test_a_failed_claim_releases_its_space(tmp_path: Path, free: list[int]) -> None:
    space = DiskSpace(tmp_path, reserve=0)
    with pytest.raises(ZeroDivisionError), space.claim(1000) as claim, claim.writing(10):
        raise ZeroDivisionError
    assert space.left == 1000
