"""Paths of a location behind symbolic links."""

from __future__ import annotations

from pathlib import Path

from protocol.runtime.bubblewrap import names_of


def test_every_symbolic_link_on_the_path_is_listed(tmp_path: Path) -> None:
    real = tmp_path / "disk" / "venv"
    real.mkdir(parents=True)
    (tmp_path / "middle").symlink_to(tmp_path / "disk")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".venv").symlink_to("../middle/venv")
    assert names_of(tmp_path / "home" / ".venv") == [
        tmp_path / "home" / ".venv",
        tmp_path / "middle" / "venv",
        real,
    ]
    assert names_of(real) == [real]


def test_circular_and_dangling_links_end_the_search(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert set(names_of(tmp_path / "a")) == {tmp_path / "a", tmp_path / "b"}
    (tmp_path / "lost").symlink_to("nowhere")
    assert names_of(tmp_path / "lost")[-1] == tmp_path / "nowhere"
