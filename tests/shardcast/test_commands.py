"""The `muster shardcast` commands as processes that stop on Ctrl-C and resume after a kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.devnet import run_muster
from tests.kit.manifests import PUBLISHER
from tests.kit.shardcast import content, read_folder, write_folder

Start = Callable[..., "subprocess.Popen[str]"]
SIGNED = ("--signer", PUBLISHER.address, "--run", "test")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts `muster shardcast` with arguments.

    All processes are killed after the test.
    """
    running: list[subprocess.Popen[str]] = []
    environment = os.environ | {"MUSTER_PUBLISHER_KEY": PUBLISHER.reveal().hex(), "PYTHONPATH": str(Path.cwd())}

    def begin(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cli", "shardcast", *map(str, arguments)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


def url_of(process: subprocess.Popen[str]) -> str:
    """Returns the URL that a service prints in its first line."""
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
    assert found is not None
    return found[0]


def test_the_commands_publish_a_watched_folder_over_a_relay_that_is_killed_and_restarted(
    start: Start, tmp_path: Path
) -> None:
    watched = tmp_path / "watched"
    files = content(1)
    write_folder(watched / "1", files)
    origin = start("origin", "--watch", watched, "--run", "test", "--port", 0)
    origin_url = url_of(origin)
    relay = start("relay", "--upstream", origin_url, "--store", tmp_path / "store", "--port", 0, *SIGNED)
    fetch = ("shardcast", "fetch", "--to", str(tmp_path / "to"), *SIGNED, "--json", "--from")
    fetched = json.loads(run_muster(*fetch, url_of(relay)).out)
    assert (fetched["version"], fetched["received"]) == (1, fetched["size"])
    assert read_folder(tmp_path / "to" / "1") == files

    relay.kill()
    again = start("relay", "--upstream", origin_url, "--store", tmp_path / "store", "--port", 0, *SIGNED)
    url = url_of(again)
    listed = json.loads(run_muster("shardcast", "list", "--from", url, *SIGNED, "--json").out)
    assert [(each["version"], each["state"]) for each in listed] == [(1, "complete")]
    assert json.loads(run_muster(*fetch, url).out)["received"] == 0

    for process, last in ((again, "1 version held"), (origin, "newest version 1")):
        process.send_signal(signal.SIGINT)
        said, error = process.communicate(timeout=60)
        assert process.returncode == 0
        assert last in json.loads(said.splitlines()[-1])["event"]
        assert all(json.loads(line) for line in error.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fetch", "--from", "http://relay.example", "--to", "x", *SIGNED), "plain http"),
        (("fetch", "--from", "http://127.0.0.1:1", "--to", "x", "--version", "new", *SIGNED), "no version"),
        (("fetch", "--from", "http://127.0.0.1:1", "--to", "x", "--signer", "nobody"), "neither an address nor a key"),
    ],
)
def test_a_mistake_is_reported_without_a_traceback(arguments: tuple[str, ...], words: str) -> None:
    said = run_muster("shardcast", *arguments)
    assert said.code == 1
    assert words in said.err
    assert "Traceback" not in said.err
