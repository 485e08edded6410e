"""Files that a task names: the worker refuses every path out of the task's volume.

The task may change its files meanwhile.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from protocol.errors import MusterError, NotFound, TooLarge
from worker.slots.bridge.paths import PathRefused, names_of, open_inside


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("the host's")
    data = tmp_path / "data"
    (data / "out").mkdir(parents=True)
    (data / "out" / "file").write_text("the task's")
    (data / "link").symlink_to("/etc/passwd")
    (data / "up").symlink_to("..")
    (data / "inner").symlink_to("out/file")
    (data / "directory-link").symlink_to("out")
    os.mkfifo(data / "fifo")
    return data


def test_a_regular_file_is_opened(volume: Path) -> None:
    with open_inside(volume, "out/file", most_bytes=100) as descriptor:
        assert os.read(descriptor, 100) == b"the task's"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../secret",
        "out/../../secret",
        "out/./file",
        "out//file",
        "out/",
        ".",
        "..",
        "link",
        "up/secret",
        "inner",
        "directory-link/file",
        "out",
        "fifo",
        "out/file/x",
        "nul\0byte",
        "a" * 1025,
        "/".join(["d"] * 33),
        "a" * 300,
    ],
)
def test_anything_but_a_regular_file_inside_the_volume_is_refused(volume: Path, path: str) -> None:
    with pytest.raises(PathRefused), open_inside(volume, path, most_bytes=100):
        pass


def test_sockets_and_devices_are_refused(volume: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        descriptor = os.open(volume, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{descriptor}/sock")
        os.close(descriptor)
        with pytest.raises(PathRefused), open_inside(volume, "sock", most_bytes=100):
            pass
    if os.geteuid() == 0:
        os.mknod(volume / "null", 0o666 | 0o020000, os.makedev(1, 3))
        with pytest.raises(PathRefused), open_inside(volume, "null", most_bytes=100):
            pass


def test_a_missing_or_oversized_file_is_reported(volume: Path) -> None:
    with pytest.raises(NotFound), open_inside(volume, "nothing", most_bytes=100):
        pass
    with pytest.raises(TooLarge), open_inside(volume, "out/file", most_bytes=3):
        pass


def test_replacing_a_directory_by_a_link_during_opening_never_leads_outside(volume: Path, tmp_path: Path) -> None:
    """A program that checked the path before opening it would lose this race."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("the host's")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (volume / "out").rename(volume / "away")
            (volume / "out").symlink_to(tmp_path / "outside")
            (volume / "out").unlink()
            (volume / "away").rename(volume / "out")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(2000):
            try:
                with open_inside(volume, "out/file", most_bytes=100) as descriptor:
                    assert os.read(descriptor, 100) == b"the task's"
            except MusterError:
                continue
    finally:
        stop.set()
        swapper.join()


def test_a_path_is_split_into_its_names() -> None:
    assert names_of("a/b c/ü.parquet") == ("a", "b c", "ü.parquet")
