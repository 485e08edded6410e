"""verifiers' train client, as it is released, against `muster serve`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollouts.models.tokenizer import FolderTokenizer
from tests.kit.tiny_model import rewrite_json
from tests.kit.verifiers_client import PYTHON, ROOT

pytestmark = pytest.mark.needs_verifiers

PRESET = ROOT / "trainer" / "presets" / "devnet"
TEMPLATE = "{% for turn in messages %}{{ turn.content }}{% endfor %}"
"""The train client renders chats; the preset has no template, because its prompts are plain texts."""


def run(
    *words: str | Path, python: Path = Path(sys.executable), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def ask(folder: Path, requests: list[dict[str, Any]], home: Path) -> list[dict[str, Any]]:
    """Serves a folder, and returns what the client printed."""
    token = home / "token"
    words = ["-m", "cli", "serve", str(folder), "--port", "0", "--name", "tiny", "--token-file", str(token)]
    with (
        (home / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["event"].split()[-1]
            client = ["tests.kit.verifiers_client", url, "tiny", str(folder), json.dumps(requests)]
            done = run(*client, python=PYTHON, MUSTER_TOKEN=token.read_text().strip())
        finally:
            process.terminate()
            process.wait(60)
    assert done.returncode == 0, done.stderr[-2000:] + (home / "log").read_text()[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def test_the_train_client_gets_tokens_and_logprobs_that_can_be_verified(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"there is no verifiers in {PYTHON.parents[1]}: run deploy/setup/verifiers.sh")
    folder = tmp_path / "model"
    shutil.copytree(PRESET, folder)
    rewrite_json(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    tokenizer = FolderTokenizer(folder)

    texts = ["cba=", "qwerty=", "a" * 1000]
    samplings: list[dict[str, Any]] = [
        {"seed": 5, "max_tokens": 12, "temperature": 0.8},
        {"seed": 6, "max_completion_tokens": 3, "top_p": 0.9, "top_k": 20},
        {"seed": 7, "max_tokens": 12},
    ]
    requests = [
        {"messages": [{"role": "user", "content": text}], "sampling": sampling}
        for text, sampling in zip(texts, samplings, strict=True)
    ]
    *answers, overlong = ask(folder, requests, tmp_path)

    # The client reads the context from /v1/models and does not send the prompt.
    assert overlong["status"] == 400
    assert "1000" in overlong["error"]
    for place, answer in enumerate(answers):
        received = json.loads(answer["received"])
        (sample,) = received["muster"]["samples"]
        assert answer["prompt"] == tokenizer.encode(texts[place])
        assert answer["tokens"] == sample["token_ids"]
        assert answer["logprobs"] == sample["logprobs"]
        assert answer["finish"] == {"eos": "stop", "length": "length"}[sample["finish"]]

        body, request = tmp_path / "answer.json", tmp_path / "request.json"
        request.write_text(answer["sent"])
        for forged in (False, True)[: 2 - place]:
            if forged:
                received["choices"][0]["token_ids"][0] ^= 1
            body.write_text(json.dumps(received))
            done = run("cli", "rollouts", "verify", body, "--model", folder, "--request", request)
            assert done.returncode == forged, done.stdout + done.stderr
