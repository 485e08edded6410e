"""What clients and administrators can make the service do: disconnects, floods, pauses and weight updates."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from protocol.checkpoints import folder_files, version_digest
from protocol.runtime.threads import replaced_runner
from rollouts.engines.interface import DrawnToken, SampleRequest
from rollouts.engines.torch.engine import TorchEngine
from rollouts.errors import EngineFailed
from rollouts.sampling.parameters import SamplingParameters
from rollouts.serving.generation import Generation, Mailbox, SlowReader
from rollouts.serving.limits import RequestLimits
from tests.kit.openapi import dangling_references, lenient_requests
from tests.kit.serving import NAME, ServedModel, chat_folder, record_of, served_model, wait_for

LONG = {"max_tokens": 240, "n": 24}
"""An answer that takes the tiny model a second or more."""


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[ServedModel]:
    """Returns a service with small limits."""
    limits = RequestLimits(
        answers=64,
        unread_tokens=200,
        unread_for=timedelta(0),
        pause=timedelta(seconds=20),
        drain=timedelta(seconds=20),
    )
    with served_model(folder, limits=limits) as running:
        yield running


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a version with other weights."""
    return chat_folder(tmp_path_factory.mktemp("served") / "second", seed=1)


def digest_of(folder: Path) -> str:
    """Returns the digest of a folder."""
    return version_digest(folder_files(folder))


def under_way(model: ServedModel, **options: Any) -> Future[Any]:
    """Starts a long completion, and waits until the engine computes it."""
    call = ThreadPoolExecutor(1).submit(model.complete, **(LONG | options))
    wait_for(lambda: model.backend.unanswered > 0 or call.done())
    return call


def update(model: ServedModel, folder: Path, **body: str) -> httpx.Response:
    """Sends an update of the weights."""
    return model.post("/update_weights", {"weight_dir": str(folder)} | body, admin=True)


# Clients


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_its_rows(model: ServedModel, stream: bool) -> None:
    model.wait_until_idle()
    body = {"model": NAME, "prompt": "a", "stream": stream} | LONG | {"n": 64}
    headers = {"Authorization": f"Bearer {model.token}"}
    with httpx.Client(timeout=60) as client, ThreadPoolExecutor(1) as thread:
        if stream:
            with client.stream("POST", f"{model.url}/v1/completions", json=body, headers=headers) as answer:
                assert next(answer.iter_lines()).startswith("data: ")
                assert model.backend.unanswered > 8
        else:
            call = thread.submit(client.post, f"{model.url}/v1/completions", json=body, headers=headers, timeout=0.5)
            wait_for(lambda: model.backend.unanswered > 8)
            with pytest.raises(httpx.ReadTimeout):
                call.result()
    since = time.monotonic()
    model.wait_until_idle()
    assert time.monotonic() - since < 4, "a session asks every step whether a job goes on"
    assert model.complete().choices[0].finish_reason


def test_a_client_that_does_not_read_its_stream_loses_it(model: ServedModel) -> None:
    model.wait_until_idle()
    sent: list[bytes] = []
    reads, ended = asyncio.Event(), threading.Event()

    async def call() -> None:
        """Calls the application as a server does whose client has stopped reading after the first event."""
        body = json.dumps({"model": NAME, "prompt": "a", "stream": True} | LONG).encode()
        messages = [{"type": "http.request", "body": body}]

        async def receive() -> Any:
            if not messages:
                await asyncio.Event().wait()
            return messages.pop()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                if len(sent) == 1:
                    await reads.wait()
                sent.append(message["body"])

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "query_string": b"",
            "headers": [(b"authorization", f"Bearer {model.token}".encode())],
            "client": ("127.0.0.1", 1),
            "app": model.app,
        }
        await model.app(scope, receive, send)
        ended.set()

    on_loop = asyncio.run_coroutine_threadsafe(call(), model.loop)
    wait_for(lambda: model.backend.unanswered > 0)
    model.wait_until_idle()
    assert not ended.is_set(), "the rows are free before the client reads again"
    model.loop.call_soon_threadsafe(reads.set)
    on_loop.result(30)
    error = json.loads(sent[-1].removeprefix(b"data: "))["error"]
    assert (error["code"], "200 tokens" in error["message"]) == ("slow_reader", True)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "{long}"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "{long}"}]}]},
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"mood": "{long}"}},
    ],
)
def test_a_long_text_does_not_stall_the_service(model: ServedModel, body: dict[str, Any]) -> None:
    gaps: list[float] = []

    async def measure() -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - before)
            before = time.monotonic()

    long = json.loads(json.dumps(body).replace("{long}", "a" * 200_000))
    measuring = asyncio.run_coroutine_threadsafe(measure(), model.loop)
    since = time.monotonic()
    answer = model.post("/v1/completions" if "prompt" in body else "/v1/chat/completions", {"model": NAME} | long)
    took = time.monotonic() - since
    measuring.cancel()
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert max(gaps) < took / 2, "the text is encoded in another thread, without Python's lock"


async def test_a_reader_without_a_turn_keeps_its_stream() -> None:
    """After a stall of the event loop, tokens arrive before any client could read."""
    limits = RequestLimits(unread_tokens=10, unread_for=timedelta(seconds=0.05))
    requests = (SampleRequest(sample=0, prompt_tokens=(1,), seed=bytes(32)),)
    mailbox = Mailbox(asyncio.get_running_loop())
    parameters = SamplingParameters(max_new_tokens=100)
    generation = Generation(requests, parameters, mailbox=mailbox, streamed=True, limits=limits)

    def draw(positions: range) -> None:
        assert generation.job.on_token is not None
        for position in positions:
            generation.job.on_token(DrawnToken(sample=0, position=position, token=4, logprob=-1.0))

    draw(range(50))
    assert len(await generation.news()) == 50
    await asyncio.sleep(0.06)
    draw(range(50, 90))
    await asyncio.sleep(0)
    assert not generation.job.should_stop(), "the time begins anew when the client reads"
    await asyncio.sleep(0.06)
    draw(range(90, 91))
    await asyncio.sleep(0)
    with pytest.raises(SlowReader, match="10 tokens"):
        await generation.news()
    assert generation.job.should_stop()


def test_a_large_answer_is_written_in_a_thread(model: ServedModel) -> None:
    calls: list[object] = []

    async def run(call: Callable[[], Any]) -> Any:
        calls.append(call)
        return await asyncio.to_thread(call)

    with replaced_runner(run):
        assert model.complete(n=8).usage.completion_tokens <= 64
        assert not calls
        assert model.complete(**LONG, seed=1).usage.completion_tokens > 1024
        assert len(calls) == 1


def test_a_flood_is_answered_with_429(model: ServedModel) -> None:
    model.wait_until_idle()
    model.post("/pause", admin=True)
    clients = ThreadPoolExecutor(2)
    waiting = [clients.submit(model.complete, n=24) for _ in range(2)]
    wait_for(lambda: model.backend.answers == 48)
    with pytest.raises(openai.RateLimitError, match="the limit is 64") as refused:
        model.complete(n=30)
    assert refused.value.response.headers["Retry-After"] == "1"
    assert refused.value.type == "rate_limit_error"
    model.post("/resume", admin=True)
    assert [len(one.result().choices) for one in waiting] == [24, 24]
    assert len(model.complete(n=30).choices) == 30


def test_many_clients_share_the_batch(model: ServedModel) -> None:
    model.wait_until_idle()
    alone = [model.complete(seed=seed, max_tokens=30).choices[0].text for seed in range(16)]
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda seed: model.complete(seed=seed, max_tokens=30).choices[0].text, range(16)))
    assert found == alone


def test_metrics_and_readiness_name_the_engines_state(model: ServedModel) -> None:
    page = httpx.get(f"{model.url}/metrics").text
    assert re.search(r'muster_serving_answers_total\{finish="length"\} [1-9]', page)
    assert "muster_serving_batch_rows 8.0" in page
    assert model.token not in page
    assert httpx.get(f"{model.url}/readyz").json() == {"ready": True, "checks": {"engine": "ok"}}
    assert httpx.get(f"{model.url}/health").status_code == 200


def test_the_schema_declares_all_bodies(model: ServedModel) -> None:
    schema = httpx.get(f"{model.url}/openapi.json").json()
    assert not dangling_references(schema)
    assert not lenient_requests(schema)
    assert "problem+json" not in json.dumps(schema)


# Administration


def test_only_the_admin_token_changes_what_is_served(model: ServedModel, second: Path) -> None:
    for path, body in (("/pause", None), ("/resume", None), ("/update_weights", {"weight_dir": str(second)})):
        answer = model.post(path, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_token_needed")
        assert httpx.post(model.url + path, json=body).status_code == 401
    assert record_of(model.complete())["version"] == digest_of(model.folder)


def test_requests_wait_while_the_service_is_paused(model: ServedModel) -> None:
    answer = under_way(model, n=4)
    assert model.post("/pause", admin=True, mode="keep", clear_cache="false").json() == {"status": "paused"}
    assert len(answer.result(1).choices) == 4, "answers in progress end before the pause begins"
    waiting = ThreadPoolExecutor(1).submit(model.complete)
    wait_for(lambda: model.backend.answers == 1)
    assert not waiting.done()
    assert model.backend.unanswered == 0
    assert model.post("/resume", admin=True).json() == {"status": "resumed"}
    assert waiting.result(10).choices[0].finish_reason
    stopped = under_way(model)
    model.post("/pause", admin=True, mode="abort")
    with pytest.raises(openai.InternalServerError, match="paused, which stopped the answer") as error:
        stopped.result(10)
    assert error.value.status_code == 503
    model.post("/resume", admin=True)
    assert model.post("/pause", admin=True, mode="freeze").status_code == 422


def test_weights_are_updated_between_answers(model: ServedModel, second: Path) -> None:
    former, new = digest_of(model.folder), digest_of(second)
    before = model.complete(seed=1)
    answer = under_way(model, seed=2)
    with ThreadPoolExecutor(2) as clients:
        changing = clients.submit(update, model, second, version=new)
        wait_for(lambda: model.backend._loading)
        later = clients.submit(model.complete, seed=1)
        assert record_of(answer.result(30))["version"] == former
        assert changing.result(30).json() == {"status": "ok", "version": new}
        after = later.result(30)
    assert record_of(after)["version"] == new
    assert after.choices[0].text != before.choices[0].text
    assert model.openai.models.retrieve(NAME).to_dict()["muster"]["version"] == new  # type: ignore[index]
    # prime-rl's sequence: it pauses, puts a mark into the folder, sends only the folder, and resumes
    (model.folder / "NCCL_READY").touch()
    marked = digest_of(model.folder)
    assert model.post("/pause", admin=True, mode="keep", clear_cache="false").status_code == 200
    assert update(model, model.folder).json() == {"status": "ok", "version": marked}
    assert model.post("/resume", admin=True).status_code == 200
    assert model.complete(seed=1).choices[0].text == before.choices[0].text
    (model.folder / "NCCL_READY").unlink()
    assert update(model, model.folder, version=former).status_code == 200


@pytest.mark.parametrize(
    ("change", "body", "code", "words"),
    [
        (lambda folder: None, {"version": "0x" + "ab" * 32}, "wrong_digest", "names 0xabab"),
        (lambda folder: (folder / "config.json").unlink(), {}, "bad_version_folder", "config.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), {}, "bad_version_folder", "tokenizer.json"),
        (lambda folder: _damage(folder / "model.safetensors"), {}, "bad_version_folder", "model.safetensors"),
        (lambda folder: None, {"version": "latest"}, "invalid_request", "version"),
        (lambda folder: None, {"weight_dir": "relative"}, "invalid_request", "absolute"),
        (lambda folder: None, {"weight_dir": "/no/such/folder"}, "bad_version_folder", "not a folder"),
    ],
)
def test_a_bad_update_changes_nothing(
    model: ServedModel, tmp_path: Path, change: Callable[[Path], object], body: dict[str, str], code: str, words: str
) -> None:
    before = model.complete(seed=1).muster
    folder = chat_folder(tmp_path / "bad", seed=2)
    change(folder)
    answer = update(model, folder, **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert words in answer.json()["error"]["message"]
    assert model.complete(seed=1).muster == before


def _damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_the_former_version_is_loaded_again_if_the_new_one_does_not_load(
    model: ServedModel, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model.complete(seed=1).muster
    load = model.backend._shared.load

    def fails(folder: Path, *, version: Any) -> None:
        load(folder, version=version)
        if folder == second:
            raise EngineFailed("the device is gone")

    monkeypatch.setattr(model.backend._shared, "load", fails)
    answer = update(model, second)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_failed")
    assert model.complete(seed=1).muster == before


def test_a_failed_engine_loads_its_version_again(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    before = model.complete(seed=1).muster

    def fails(*_: object) -> Any:
        raise EngineFailed("a logit is NaN")

    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, "_answers", fails)
        with pytest.raises(openai.InternalServerError, match="a logit is NaN"):
            model.complete()
    assert model.complete(seed=1).muster == before


def test_an_answer_that_does_not_fit_into_memory_ends_alone(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.wait_until_idle()
    before = model.complete(seed=1, max_tokens=30).choices[0].text
    monkeypatch.setattr(TorchEngine, "_budget", lambda _: 100 * 2 * 2 * 2 * 24 * 4)
    loads: list[object] = []
    monkeypatch.setattr(model.backend._shared, "load", lambda *at, **_: loads.append(at))
    with ThreadPoolExecutor(2) as clients:
        large = clients.submit(model.complete, [4] * 150, seed=2)
        small = clients.submit(model.complete, seed=1, max_tokens=30)
    with pytest.raises(openai.InternalServerError, match="not even one answer fits"):
        large.result()
    assert small.result().choices[0].text == before
    assert not loads, "the engine did not fail"


# The command


def test_the_command_serves_a_folder_and_stops(folder: Path, tmp_path: Path) -> None:
    token_file, admin_file = tmp_path / "keys" / "token", tmp_path / "keys" / "admin"
    words = [
        "serve",
        str(folder),
        "--port",
        "0",
        "--token-file",
        str(token_file),
        "--admin-token-file",
        str(admin_file),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        where = json.loads(process.stdout.readline())["event"]
        said = json.loads(process.stdout.readline())["event"]
        assert said == f"the token is in {token_file}"
        token = token_file.read_text().strip()
        assert token_file.stat().st_mode & 0o077 == 0
        client = openai.OpenAI(base_url=where.split()[-1], api_key=token, max_retries=5, timeout=60)
        answer = client.completions.create(model="first", prompt="a", max_tokens=2)
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 2
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert token not in out + err
    assert admin_file.read_text().strip() not in out + err + " ".join(words)
