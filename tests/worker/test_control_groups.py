"""Control groups of tasks without Docker, on a folder instead of the kernel's file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.wire.tasks import Resources
from worker.runtime.control_groups import find_control_groups, make_control_groups

RESOURCES = Resources(cpus=2, memory_bytes=1 << 30, disk_bytes=1 << 30)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").touch()
    return tmp_path


def test_a_group_of_version_2_has_the_tasks_limits(root: Path) -> None:
    (group,) = make_control_groups("task", RESOURCES, root=root)
    assert find_control_groups("task", root=root) == (group,)
    assert (group / "memory.max").read_text() == str(1 << 30)
    assert (group / "cpu.max").read_text() == "200000 100000"


def test_a_group_whose_limit_cannot_be_set_is_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def refusing(path: Path, data: str) -> int:
        if path.name == "memory.max":
            raise PermissionError(path.name)
        return write(path, data)

    monkeypatch.setattr(Path, "write_text", refusing)
    assert make_control_groups("task", RESOURCES, root=root) == ()
    assert find_control_groups("task", root=root) == ()
