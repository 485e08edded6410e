"""An evaluation asks an OpenAI-compatible endpoint, and reports what that endpoint lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fastapi import FastAPI, Request, Response

from protocol.errors import InvalidInput, Unavailable
from protocol.http.serving.service import create_service
from rollouts.engines.opening import open_engine
from rollouts.environments import load_environment
from rollouts.models.chat import ChatFormat
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from rollouts.recipe import EnvironmentChoice, LengthTargets, PromptRange, Recipe, SamplingChoice
from tests.kit.devnet import run_muster
from tests.kit.http_server import served
from tests.kit.rollout_task import HastyClock
from tests.kit.serving import NAME, ServedModel, chat_folder, served_model
from trainer.endpoint import EndpointAnswers, EndpointRefused
from trainer.evaluator import Evaluator, held_out_prompts

torch.set_num_threads(1)
LETTERS = load_environment("letters")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """Returns a running service."""
    with served_model(chat_folder(tmp_path_factory.mktemp("served") / NAME)) as running:
        yield running


def recipe_of(*, chat: bool | ChatFormat = False, length: LengthTargets | None = None) -> Recipe:
    return Recipe(
        environment=EnvironmentChoice(name="letters", version="1"),
        sampling=SamplingChoice(max_new_tokens=6, top_p=0.9),
        group_size=4,
        chat=chat,
        length=length,
        held_out=0.1,
        prompts=PromptRange(count=100),
    )


def evaluator_of(folder: Path, recipe: Recipe) -> Evaluator:
    return Evaluator(
        environment=LETTERS,
        recipe=recipe,
        tokenizer=FolderTokenizer(folder),
        indices=held_out_prompts(LETTERS, recipe, count=12),
        samples=2,
    )


def endpoint(url: str, evaluator: Evaluator, *, token: str | None = None) -> EndpointAnswers:
    return EndpointAnswers(
        url=url, model=NAME, token=token, recipe=evaluator.recipe, tokenizer=evaluator.tokenizer, clock=HastyClock()
    )


@pytest.mark.parametrize("chat", [False, ChatFormat(system="be brief", template={"mood": "glad"})])
def test_greedy_answers_of_an_endpoint_score_like_those_of_the_engine(
    model: ServedModel, chat: bool | ChatFormat
) -> None:
    evaluator = evaluator_of(model.folder, recipe_of(chat=chat))
    found = evaluator.measure(endpoint(f"{model.url}/v1", evaluator, token=model.token))
    engine = open_engine(EngineName.TORCH, dtype=Dtype.FLOAT32, device="cpu")
    engine.load(model.folder, version=model.backend.version.digest)
    expected = evaluator.evaluate(engine)
    for name in ("prompts", "greedy", "greedy_tokens", "greedy_finished", "greedy_reward", "examples", "samples"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.reward is not None
    assert set(found.pass_at) == {1, 2}


def test_the_command_evaluates_an_endpoint(model: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe_folder, token = tmp_path / NAME, tmp_path / "token"
    recipe_folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (recipe_folder / name).write_bytes((model.folder / name).read_bytes())
    (recipe_folder / "recipe.json").write_text(recipe_of().model_dump_json())
    token.write_text(f"{model.token}\n")
    words = ["trainer", "eval", str(recipe_folder), "--endpoint", f"{model.url}/v1", "--prompts", "4", "--samples", "2"]
    said = run_muster(*words, "--token-file", str(token), "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)[0]["evaluation"]["prompts"] == 4
    refused = run_muster(*words)
    assert refused.code == 1
    assert "the endpoint answered 401: this request needs a bearer token" in refused.err
    monkeypatch.setenv("MUSTER_ENDPOINT_TOKEN", model.token)
    assert run_muster(*words).code == 0
    assert "'other' is not served here" in run_muster(*words, "--model", "other").err
    assert "belong to --endpoint" in run_muster("trainer", "eval", str(recipe_folder), "--model", "other").err


def faulty(answers: list[tuple[int, str]]) -> FastAPI:
    """Returns an endpoint with these answers, the last one for ever."""
    app = create_service("faulty", version="1")

    @app.post("/v1/completions")
    async def complete(_request: Request) -> Response:
        status, body = answers[0] if len(answers) == 1 else answers.pop(0)
        return Response(body, status, media_type="application/json")

    return app


GOOD = json.dumps({"choices": [{"text": "ab", "finish_reason": "stop"}]})


def test_a_busy_endpoint_is_asked_again(model: ServedModel) -> None:
    evaluator = evaluator_of(model.folder, recipe_of())
    with served(faulty([(503, "busy"), (429, "{}"), (500, '{"error": "no"}'), (200, GOOD)])) as url:
        assert evaluator.measure(endpoint(f"{url}/v1", evaluator)).greedy_finished == 1.0
    with (
        served(faulty([(503, '{"error": {"message": "too\\nbusy"}}')])) as url,
        pytest.raises(Unavailable, match="answered 503: too busy"),
    ):
        evaluator.measure(endpoint(f"{url}/v1", evaluator))
    with pytest.raises(Unavailable, match="does not answer: ConnectError"):
        evaluator.measure(endpoint("http://127.0.0.1:1/v1", evaluator))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, '{"error": {"message": "top_k is unknown"}}', "answered 400: top_k is unknown"),
        (404, "<html>", "answered 404: without a message"),
        (200, "[]", "not a JSON object"),
        (200, '{"choices": []}', "no text"),
        (200, '{"choices": [{"text": 3, "finish_reason": "stop"}]}', "ended with"),
        (200, '{"choices": [{"text": "a", "finish_reason": "tool_calls"}]}', "ended with 'tool_calls'"),
    ],
)
def test_an_endpoint_that_refuses_or_differs_ends_the_evaluation(
    model: ServedModel, status: int, body: str, words: str
) -> None:
    evaluator = evaluator_of(model.folder, recipe_of())
    with served(faulty([(status, body)])) as url, pytest.raises(EndpointRefused, match=words):
        evaluator.measure(endpoint(f"{url}/v1", evaluator))


@pytest.mark.parametrize(
    ("url", "length", "words"),
    [
        ("http://example.org/v1", None, "example.org unencrypted"),
        ("ftp://example.org", None, "URL is not valid"),
        ("https://me:secret@example.org/v1", None, "URL is not valid"),
        ("https://example.org/v1", LengthTargets(targets=(1,), alpha=0.5), "length of answers in tokens"),
    ],
)
def test_an_endpoint_that_cannot_serve_is_refused_at_once(
    model: ServedModel, url: str, length: LengthTargets | None, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as error:
        endpoint(url, evaluator_of(model.folder, recipe_of(length=length)), token="t")
    assert "secret" not in str(error.value)
