"""`muster gateway verifier` judges real answers of a tiny model, and survives restarts of the gateway."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from gateway.clients.tokens import GatewayRole
from gateway.settings import Verify
from protocol.clients.verifications import VerificationClient
from protocol.errors import Forbidden, InvalidInput, Unauthenticated, Unavailable
from protocol.runtime.clock import SystemClock
from protocol.wire.answers import AnswerRecord
from protocol.wire.serving import AnswerPart, AnswerTokens, AssignedRequest, VerificationResult
from protocol.wire.serving import Verification as Task
from rollouts.errors import BadVersionFolder
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.verify.answers import digest_of
from rollouts.verify.gateway import Computation, GatewayVerifier, Judge
from tests.kit.gateway import RUN, GatewayTask, GatewayUnderTest, build, eventually, running_gateway
from tests.kit.http_server import served
from tests.kit.serving import NAME, ServedModel, chat_folder, served_model

torch.set_num_threads(1)
Change = Callable[[dict[str, Any], list[str]], None]
ROUTES = {"completion": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/inference/v1/generate"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("verifier") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[ServedModel]:
    with served_model(folder) as running:
        yield running


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    with served_model(chat_folder(tmp_path_factory.mktemp("other") / "model", seed=3)) as running:
        yield running


def answer_by(
    model: ServedModel, task: GatewayTask, request: AssignedRequest, *, change: Change | None = None, **asked: Any
) -> None:
    """Answers a request with a real model; `asked` changes what the node computes, `change` what it says."""
    body = json.loads(request.body) | {"model": NAME}
    wanted = body | asked
    if "max_tokens" not in wanted and request.kind.value == "chat":
        wanted["max_tokens"] = 64
    answer = model.post(ROUTES[request.kind.value], wanted).json()
    record = answer["muster"] | {"version": task.lease.digest}
    record["sampling"]["temperature"] = body.get("temperature", 1.0)
    texts = [choice.get("text") or choice.get("message", {}).get("content") or "" for choice in answer["choices"]]
    if change is not None:
        change(record, texts)
    tokens = tuple(
        AnswerTokens(choice=one["sample"], tokens=one["token_ids"], logprobs=one["logprobs"], text=text)
        for one, text in zip(record["samples"], texts, strict=True)
    )
    task.send(
        AnswerPart(id=request.id, attempt=request.attempt, number=0, tokens=tokens),
        AnswerPart(id=request.id, attempt=request.attempt, number=1, record=AnswerRecord.model_validate(record)),
    )


class RecordingJudge(Judge):
    """A judge whose results the test reads."""

    def __init__(self, folders: Any, computation: Computation) -> None:
        super().__init__(folders, computation)
        self.results: list[VerificationResult] = []

    def judge(self, task: Task, **options: Any) -> VerificationResult:
        self.results.append(super().judge(task, **options))
        return self.results[-1]


@contextmanager
def verifying(
    gateway: GatewayUnderTest, *folders: Path, url: str = ""
) -> Iterator[tuple[GatewayVerifier, RecordingJudge]]:
    """Runs a verifier in a thread."""
    token = gateway.token("verifier", role=GatewayRole.VERIFIER)
    judge = RecordingJudge({digest_of(folder): folder for folder in folders}, Computation())
    client = VerificationClient(url or gateway.url, token=token)
    running = GatewayVerifier(client, judge, clock=SystemClock())
    stop: list[Callable[[], object]] = []
    started = threading.Event()

    async def work() -> None:
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        stop.append(partial(loop.call_soon_threadsafe, event.set))
        async with client:
            await running.run(event, on_start=started.set)

    with ThreadPoolExecutor() as pool:
        future = pool.submit(asyncio.run, work())
        eventually(lambda: started.is_set() or future.done())
        try:
            yield running, judge
        finally:
            stop[0]()
            future.result(10)


def _judged(verifier: GatewayVerifier, count: int) -> bool:
    return verifier.judged == count


def serve(gateway: GatewayUnderTest, folder: Path) -> None:
    """Makes the folder the version of the pool."""
    gateway.ledger.announced = dict.fromkeys(gateway.ledger.announced, digest_of(folder))


def post(gateway: GatewayUnderTest, token: str, route: str, body: dict[str, Any]) -> httpx.Response:
    """Sends a client's request."""
    return httpx.post(gateway.url + route, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=30)


def _forged_text(_record: dict[str, Any], texts: list[str]) -> None:
    texts[0] += "!"


def _no_proofs(record: dict[str, Any], _texts: list[str]) -> None:
    record["samples"][1]["proofs"] = None


def _bad_proofs(record: dict[str, Any], _texts: list[str]) -> None:
    record["samples"][1]["proofs"] = "~"


def _shorter(record: dict[str, Any], _texts: list[str]) -> None:
    record["sampling"]["max_new_tokens"] = 40


def _other_prompt(record: dict[str, Any], _texts: list[str]) -> None:
    record["prompts"][0][-1] ^= 1


COMPLETION: dict[str, Any] = {"prompt": "12+34=", "max_tokens": 40, "n": 2, "seed": 5}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "12+34="}], "seed": 6}
GENERATE: dict[str, Any] = {"token_ids": [4, 5], "sampling_params": {"max_tokens": 20, "seed": 7}}


def test_results_for_honest_and_forged_answers(
    redis_url: str, folder: Path, model: ServedModel, other: ServedModel
) -> None:
    cases: list[tuple[str, dict[str, Any], ServedModel, dict[str, Any], Change | None, bool | None, str]] = [
        ("completion", COMPLETION, model, {}, None, True, ""),
        ("chat", CHAT, model, {}, None, True, ""),
        ("generate", GENERATE, model, {}, None, True, ""),
        ("completion", COMPLETION, model, {}, _forged_text, False, "content: choice 0: .*text"),
        ("completion", COMPLETION, other, {}, None, False, "sampling"),
        ("completion", COMPLETION, model, {"temperature": 3.0}, None, False, "sampling"),
        ("completion", COMPLETION, model, {}, _no_proofs, False, "choice 1 has no proofs"),
        ("completion", COMPLETION, model, {}, _bad_proofs, False, "not base64"),
        ("completion", COMPLETION, model, {}, _other_prompt, False, "prompts are not those"),
        ("chat", CHAT, model, {"max_tokens": 40}, _shorter, False, "sampling parameters are not those"),
    ]
    with running_gateway(redis_url, verify=Verify.SAMPLED, verify_share=1.0) as gateway:
        serve(gateway, folder)
        token = gateway.token()
        with verifying(gateway, folder, other.folder) as (verifier, judge), ThreadPoolExecutor() as pool:
            for number, (kind, body, by, asked, change, valid, words) in enumerate(cases):
                task = gateway.task(digest=digest_of(folder))
                asking = pool.submit(post, gateway, token, ROUTES[kind], {"model": RUN} | body)
                answer_by(by, task, task.take_one(), change=change, **asked)
                assert asking.result(20).status_code == 200
                eventually(partial(_judged, verifier, number + 1))
                result = judge.results[number]
                assert result.valid is valid, (number, result)
                assert not words or any(re.search(words, reason) for reason in result.reasons), result
                task.close()
        metrics = httpx.get(f"{gateway.url}/metrics").text
        assert 'verdicts_total{verdict="valid"} 3.0' in metrics
        assert 'verdicts_total{verdict="invalid"} 7.0' in metrics


def test_an_open_result_is_computed_once_and_the_client_is_told(
    redis_url: str, folder: Path, model: ServedModel, other: ServedModel
) -> None:
    """Arithmetic without limits, and a version that the verifier has not, are no fault of the node."""
    judge = Judge({digest_of(other.folder): other.folder}, Computation())
    task = Task(
        id="0" * 32,
        version=digest_of(folder),
        kind="completion",
        body="{}",
        answer="{}",
        seed="0x" + "11" * 32,
        most_new_tokens=64,
        ends_at_ms=1 << 45,
    )
    unknown = judge.judge(task)
    assert (unknown.valid, "does not have the version" in unknown.reasons[0]) == (None, True)
    malformed = judge.judge(task.model_copy(update={"version": digest_of(other.folder)}))
    assert (malformed.valid, malformed.reasons) == (False, ("the answer has no field `muster`",))
    with running_gateway(redis_url, arithmetic=("torch/bfloat16",), verify=Verify.BEFORE) as gateway:
        serve(gateway, folder)
        token = gateway.token()
        working = gateway.task(digest=digest_of(folder), arithmetic="torch/bfloat16")
        with verifying(gateway, folder) as (verifier, recording), ThreadPoolExecutor() as pool:
            asking = pool.submit(post, gateway, token, ROUTES["completion"], {"model": RUN} | COMPLETION)
            answer_by(model, working, working.take_one(), change=_bfloat16)
            eventually(lambda: verifier.judged >= 2)
            assert [one.valid for one in recording.results] == [None]
            assert any(one.startswith("sampling") for one in recording.results[0].reasons)
            gateway.turn(61)
            assert asking.result(20).json()["error"]["code"] == "not_verified"


def _bfloat16(record: dict[str, Any], _texts: list[str]) -> None:
    record["arithmetic"] = "torch/bfloat16"


def test_a_verifier_outlives_the_gateway_and_clients_get_only_valid_answers(
    redis_url: str, folder: Path, model: ServedModel
) -> None:
    with (
        running_gateway(redis_url, verify=Verify.BEFORE) as gateway,
        ExitStack() as stack,
        ThreadPoolExecutor() as pool,
    ):
        serve(gateway, folder)
        token = gateway.token()
        liar, honest = gateway.task(digest=digest_of(folder)), gateway.task(digest=digest_of(folder))
        with replica_at(gateway, 0) as port:
            verifier, judge = stack.enter_context(verifying(gateway, folder, url=f"http://127.0.0.1:{port}"))
        asking = pool.submit(post, gateway, token, ROUTES["completion"], {"model": RUN} | COMPLETION)
        taken = liar.take(wait_s=1).requests
        first, second = (liar, honest) if taken else (honest, liar)
        request = taken[0] if taken else first.take_one()
        answer_by(model, first, request, change=_forged_text)
        with replica_at(gateway, port):
            again = second.take_one(wait_s=10)
            assert (again.id, again.attempt) == (request.id, 1)
            answer_by(model, second, again)
            answer = asking.result(20).json()
            text = answer["choices"][0]["text"]
            assert text == FolderTokenizer(folder).decode(answer["muster"]["samples"][0]["token_ids"])
            eventually(lambda: verifier.judged == 2)
            assert [one.valid for one in judge.results] == [False, True]
            stack.close()


@contextmanager
def replica_at(gateway: GatewayUnderTest, port: int) -> Iterator[int]:
    """Runs another replica, at a port that it had before if that is not 0."""
    app, _ = build(gateway.redis_url, gateway.key, gateway.ledger, gateway.clock, False, {"verify": Verify.BEFORE})
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    with served(app, listener=listener):
        yield listener.getsockname()[1]


def test_a_start_that_fails_says_why(redis_url: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadVersionFolder):
        Judge.of([tmp_path / "empty"], Computation())
    with pytest.raises(InvalidInput, match="has the same version as"):
        Judge.of([folder, folder], Computation())

    def start(url: str, token: str) -> None:
        judge = Judge({digest_of(folder): folder}, Computation())
        client = VerificationClient(url, token=token)
        asyncio.run(GatewayVerifier(client, judge, clock=SystemClock()).run(asyncio.Event()))

    with running_gateway(redis_url) as gateway:
        with pytest.raises(Forbidden, match="this request needs verifier"):
            start(gateway.url, gateway.token("app"))
        with pytest.raises(Unauthenticated):
            start(gateway.url, "mst_00000000_" + "a" * 43)
    with pytest.raises(Unavailable, match="can't reach"):
        start(gateway.url, "mst_00000000_" + "a" * 43)


def test_the_command_ends_at_once_after_a_signal(redis_url: str, folder: Path, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    with running_gateway(redis_url) as gateway:
        token_file.write_text(f"{gateway.token('checker', role=GatewayRole.VERIFIER)}\n")
        command = [sys.executable, "-m", "cli", "gateway", "verifier", "--token-file", str(token_file)]
        command += ["--model", str(folder), "--device", "cpu", "--gateway", gateway.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            assert f"verifying answers of {gateway.url} for {digest_of(folder)}" in process.stdout.readline()
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert time.monotonic() - started < 5
    token_file.write_text("\n")
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (said.returncode, "has no token" in said.stderr) == (1, True), said.stderr
