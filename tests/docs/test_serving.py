"""docs/serving.md: the commands and the program on the page work in order."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.openai.bodies import SEED_TAG
from tests.kit.command_line import reader_variables
from tests.kit.serving import chat_folder

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text()
BLOCKS = re.findall(r"^```(sh serve|sh|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def reader(tmp_path: Path) -> dict[str, str]:
    """Makes the reader's folder with two models; returns the variables of the reader's shell."""
    for seed, name in enumerate(("base", "next")):
        chat_folder(tmp_path / "models" / name, seed=seed)
    return reader_variables(tmp_path)


def test_the_pages_commands_work_in_order(tmp_path: Path, reader: dict[str, str]) -> None:
    assert [kind for kind, _ in BLOCKS] == ["sh serve", "sh", "python", "sh", "sh"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    texts = [text.replace("8000", str(port)) for _, text in BLOCKS]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            f"exec {texts[0]}", shell=True, cwd=tmp_path, env=reader, text=True, stdout=subprocess.PIPE, stderr=log
        )
        try:
            assert server.stdout is not None
            assert "serving base on" in server.stdout.readline(), (tmp_path / "log").read_text()
            said = [
                subprocess.run(
                    ["bash", "-e"] if kind == "sh" else [sys.executable, "-"],
                    input=text,
                    cwd=tmp_path,
                    env=reader,
                    text=True,
                    capture_output=True,
                    timeout=120,
                    check=False,
                )
                for (kind, _), text in zip(BLOCKS[1:], texts[1:], strict=True)
            ]
        finally:
            server.terminate()
            server.wait(30)
    for one in said:
        assert one.returncode == 0, one.stderr + one.stdout
    started, program, updated, evaluated = (one.stdout for one in said)
    assert "nothing is wrong with it" in started
    assert program.count("length") + program.count("stop") >= 4
    assert '"status":"ok"' in updated
    assert "greedy" in evaluated
    assert server.returncode == 0


def test_the_page_names_the_tag_of_seeds() -> None:
    assert f"`{SEED_TAG.decode()}`" in PAGE
