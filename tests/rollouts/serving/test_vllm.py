"""The service with the vLLM engine, in an environment that has vLLM."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from rollouts.checks import CheckOutcome
from rollouts.precision import EngineName
from rollouts.verify.answers import Answer, verify_answer
from tests.kit.serving import chat_folder, record_of
from tests.kit.vllm_engine import PYTHON, ROOT

torch.set_num_threads(1)
pytestmark = pytest.mark.needs_vllm


def test_vllm_serves_answers_that_torch_verifies(tmp_path: Path) -> None:
    folder = chat_folder(
        tmp_path / "model", num_attention_heads=3, num_key_value_heads=3
    )  # heads that vLLM can compute
    token = tmp_path / "token"
    words = ["serve", str(folder), "--port", "0", "--token-file", str(token), "--engine", "vllm", "--name", "tiny"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [PYTHON, "-m", "cli", *words],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            where = json.loads(process.stdout.readline())["event"].split()[-1]
            client = openai.OpenAI(base_url=where, api_key=token.read_text().strip(), max_retries=0, timeout=300)
            create: Any = client.completions.create

            def whole(seed: int) -> Any:
                return create(model="tiny", prompt="12+34=", max_tokens=40, n=2, seed=seed)

            with ThreadPoolExecutor(8) as clients:
                answers = list(clients.map(whole, range(8)))
            streamed = list(create(model="tiny", prompt="12+34=", max_tokens=40, n=2, seed=3, stream=True))
        finally:
            process.terminate()
            process.wait(60)
    assert process.returncode == 0, (tmp_path / "log").read_text()[-2000:]
    for index in (0, 1):
        text = "".join(one.text for chunk in streamed for one in chunk.choices if one.index == index)
        assert text == answers[3].choices[index].text
    for answer in answers[:2]:
        assert record_of(answer)["arithmetic"].startswith("vllm")
        found = verify_answer(Answer.parse(answer.model_dump_json().encode()), folder, engine=EngineName.TORCH)
        assert {one.state for one in found.results} == {CheckOutcome.PASSED}, found.results
