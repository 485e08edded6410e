"""A continued devnet listens on the ports of its last start, if they are free."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cli.devnet.directory import DevnetDirectory
from cli.devnet.ports import DevnetPorts

NAMES = ("chain", "discovery", "orchestrator")


def test_ports_are_used_again_unless_another_program_has_taken_them(tmp_path: Path) -> None:
    directory = DevnetDirectory(tmp_path)
    first = DevnetPorts(directory)
    before = {name: first.of(name) for name in NAMES}
    assert len(set(before.values())) == len(NAMES)
    first.save()
    with socket.socket() as other:
        other.bind(("127.0.0.1", before["discovery"]))
        other.listen()
        again = DevnetPorts(directory)
        after = {name: again.of(name) for name in NAMES[:2]}
        again.save()
    assert after["chain"] == before["chain"]
    assert after["discovery"] not in before.values()
    third = DevnetPorts(directory)
    assert third.of("orchestrator") == before["orchestrator"]  # it did not run the second time
    assert third.of("discovery") == after["discovery"]


@pytest.mark.parametrize("text", ["{torn", "[1]", '{"chain": "80", "discovery": 22, "orchestrator": true}'])
def test_a_damaged_file_is_ignored(tmp_path: Path, text: str) -> None:
    directory = DevnetDirectory(tmp_path)
    directory.ports.write_text(text)
    ports = DevnetPorts(directory)
    assert all(ports.of(name) > 1024 for name in NAMES)


def test_no_port_is_given_twice(tmp_path: Path) -> None:
    directory = DevnetDirectory(tmp_path)
    directory.ports.write_text('{"chain": 31999, "discovery": 31999}')
    ports = DevnetPorts(directory)
    assert ports.of("chain") != ports.of("discovery")
