"""An answer of the service is verified from its field `muster`, and a forged one is refused."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.errors import InvalidInput
from rollouts.checks import CheckOutcome
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.verify.answers import Answer, BadAnswer, verify_answer
from rollouts.verify.files import Verification
from tests.kit.devnet import run_muster
from tests.kit.serving import ServedModel, chat_folder, record_of, served_model

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def answers(model: ServedModel) -> dict[str, Any]:
    """Returns saved answers of completions, chats and token requests."""
    options: dict[str, Any] = {"max_tokens": 70, "n": 3, "temperature": 0.9}
    for seed in range(1000):  # some random answers end early
        completion = model.complete(["ab", "c"], **options, logprobs=0, seed=seed)
        if all(len(sample["token_ids"]) > 40 for sample in record_of(completion)["samples"][:3]):
            break
    stream = list(model.chat(**options, stream=True, logprobs=True))
    generate = {"token_ids": [4, 5], "sampling_params": {"max_tokens": 50, "n": 2, "logprobs": 1, "top_p": 0.8}}
    return {
        "completion": json.loads(completion.model_dump_json()),
        "chat": json.loads(model.chat(**options, logprobs=True).model_dump_json()),
        "greedy": json.loads(model.complete(temperature=0, max_tokens=40).model_dump_json()),
        "stream": json.loads(stream[-1].model_dump_json()),
        "generate": model.post("/inference/v1/generate", generate).json(),
    }


def verified(answer: dict[str, Any], folder: Path, **options: Any) -> Verification:
    """Verifies a saved answer, and returns the results."""
    return verify_answer(Answer.parse(json.dumps(answer).encode()), folder, **options)


def outcomes(answer: dict[str, Any], folder: Path) -> dict[str, CheckOutcome]:
    """Returns the outcome of each check."""
    return {one.check: one.state for one in verified(answer, folder).results}


@pytest.mark.parametrize("kind", ["completion", "chat", "greedy", "stream", "generate"])
def test_an_honest_answer_passes_all_checks(answers: dict[str, Any], folder: Path, kind: str) -> None:
    found = outcomes(answers[kind], folder)
    assert set(found) == {"bounds", "termination", "content", "computation", "sampling", "logprobs"}
    failed = {name for name, state in found.items() if state is not CheckOutcome.PASSED}
    assert failed == ({"content"} if kind == "stream" else set()), "a chunk has only a part of the text"
    assert verified(answers[kind], folder).complete is (kind != "stream")
    assert verified(answers[kind], folder, allow_chunk=True).complete


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("completion", {"message": {"role": "assistant", "content": "{text}"}, "text": "forged"}),
        ("completion", {"text": None}),
        ("completion", {"finish_reason": "stop"}),
        ("chat", {"text": "forged"}),
        ("chat", {"message": {"role": "assistant", "content": "{text}", "tool_calls": [{"id": "1"}]}}),
        ("chat", {"message": {"role": "user", "content": "{text}"}}),
        ("chat", {"delta": {"content": "forged"}}),
        ("chat", {"finish_reason": "tool_calls"}),
        ("chat", {"index": 1}),
        ("generate", {"token_ids": [4]}),
        ("generate", {"text": "forged"}),
    ],
)
def test_a_choice_has_nothing_but_what_its_record_says(
    answers: dict[str, Any], folder: Path, kind: str, change: dict[str, Any]
) -> None:
    forged = copy.deepcopy(answers[kind])
    choice = forged["choices"][0]
    text = choice.get("text") or choice.get("message", {}).get("content", "")
    choice.update(json.loads(json.dumps(change).replace("{text}", json.dumps(text)[1:-1])))
    [content] = [one for one in verified(forged, folder).results if one.check == "content"]
    assert content.state is CheckOutcome.FAILED
    assert any(name in content.findings[0].what for name in change), content.findings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda answer: answer["usage"].update(completion_tokens=1), "usage"),
        (lambda answer: answer.update(usage=None), "usage"),
        (lambda answer: answer["choices"].pop(), "choices 0 to 2"),
        (lambda answer: answer.update(choices=None), "choices 0 to 2"),
        (lambda answer: answer["choices"].__setitem__(1, "forged"), "no object"),
        (lambda answer: answer["choices"][1]["logprobs"]["content"][3].update(token="forged"), "logprobs"),
        (lambda answer: answer["choices"][1]["logprobs"]["content"][3].update(logprob=-1), "logprobs"),
        (lambda answer: answer.update(object=["chat.completion"]), "is no answer"),
        (lambda answer: answer.pop("object"), "message"),
    ],
)
def test_usage_and_choices_are_those_of_the_record(
    answers: dict[str, Any], folder: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    forged = copy.deepcopy(answers["chat"])
    change(forged)
    [content] = [one for one in verified(forged, folder).results if one.check == "content"]
    assert content.state is CheckOutcome.FAILED
    assert words in content.findings[0].what


def test_an_answer_that_cannot_be_checked_is_not_accepted(
    answers: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    """The service chooses arithmetic, proofs and form of its answer, so it could evade the checks."""
    forged = copy.deepcopy(answers["greedy"])
    forged["muster"]["arithmetic"] = "torch/bfloat16"
    forged["muster"]["samples"][0]["proofs"] = None
    tokens = forged["muster"]["samples"][0]["token_ids"]
    tokens[:-1] = [4 + token % 40 for token in tokens[:-1]]
    forged["choices"][0]["text"] = FolderTokenizer(folder).decode(tokens)
    for options in ({}, {"allow_missing_proofs": True}):
        verification = verified(forged, folder, **options)
        assert not verification.rejected
        assert not verification.complete
    cut = copy.deepcopy(answers["completion"])
    cut["usage"], cut["choices"][0]["text"] = None, "forged"
    assert not verified(cut, folder).complete
    saved = tmp_path / "answer.json"
    saved.write_text(json.dumps(forged))
    said = run_muster("rollouts", "verify", str(saved), "--model", str(folder))
    assert (said.code, "the answer may be forged" in said.out) == (3, True)
    saved.write_text(json.dumps(answers["stream"]))
    assert run_muster("rollouts", "verify", str(saved), "--model", str(folder)).code == 3
    assert run_muster("rollouts", "verify", str(saved), "--model", str(folder), "--allow-chunk").code == 0


def _token(answer: dict[str, Any]) -> None:
    tokens = answer["muster"]["samples"][1]["token_ids"]
    tokens[5] = 5 + tokens[5] % 40


def _proof(answer: dict[str, Any]) -> None:
    sample = answer["muster"]["samples"][0]
    proofs = bytearray(base64.b64decode(sample["proofs"]))
    proofs[100:140] = bytes(40)
    sample["proofs"] = base64.b64encode(proofs).decode()


def _seed(answer: dict[str, Any]) -> None:
    answer["muster"]["seed"] = "0x" + "17" * 32


def _logprob(answer: dict[str, Any]) -> None:
    answer["muster"]["samples"][0]["logprobs"][3] -= 0.5


def _shown(answer: dict[str, Any]) -> None:
    answer["choices"][0]["logprobs"]["token_logprobs"][3] -= 0.5


def _text(answer: dict[str, Any]) -> None:
    answer["choices"][2]["text"] += "!"


def _end(answer: dict[str, Any]) -> None:
    sample = answer["muster"]["samples"][0]
    for name in ("token_ids", "logprobs"):
        sample[name] = sample[name][:20]


def _hotter(answer: dict[str, Any]) -> None:
    answer["muster"]["sampling"]["temperature"] = 1.1


def _outside(answer: dict[str, Any]) -> None:
    answer["muster"]["samples"][0]["token_ids"][0] = 64


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        (_token, "sampling"),
        (_proof, "computation"),
        (_seed, "sampling"),
        (_logprob, "logprobs"),
        (_shown, "content"),
        (_text, "content"),
        (_end, "termination"),
        (_hotter, "sampling"),
        (_outside, "bounds"),
    ],
)
def test_a_forged_answer_fails(
    answers: dict[str, Any], folder: Path, change: Callable[[dict[str, Any]], None], failed: str
) -> None:
    forged = copy.deepcopy(answers["completion"])
    change(forged)
    assert outcomes(forged, folder)[failed] is CheckOutcome.FAILED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda answer: answer.pop("muster"), "no field `muster`"),
        (lambda answer: answer["muster"].update(seed="0x12"), "muster.seed"),
        (lambda answer: answer["muster"].update(version="0x12"), "muster.version"),
        (lambda answer: answer["muster"].update(arithmetic="gpt/float8"), "gpt/float8"),
        (lambda answer: answer["muster"]["sampling"].update(temperature=-1), "temperature is -1"),
        (lambda answer: answer["muster"]["sampling"].update(top_k=1 << 31), "top_k is 2147483648"),
        (lambda answer: answer["muster"]["samples"][0].update(sample=1), "another number"),
        (lambda answer: answer["muster"]["samples"][0].update(prompt=7), "prompt that is missing"),
        (lambda answer: answer["muster"]["prompts"].append([4]), "has the prompt 2"),
        (lambda answer: answer["muster"]["samples"][0].update(proofs="~"), "not base64"),
        (lambda answer: answer["muster"]["samples"][0]["logprobs"].append(0), "log-probabilities"),
        (lambda answer: answer["muster"]["samples"][0]["logprobs"].__setitem__(0, float("nan")), "finite number"),
    ],
)
def test_an_impossible_answer_is_refused_in_words(
    answers: dict[str, Any], folder: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    forged = copy.deepcopy(answers["completion"])
    change(forged)
    with pytest.raises(BadAnswer, match=words):
        verify_answer(Answer.parse(json.dumps(forged).encode()), folder)


def test_another_folder_is_refused(answers: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not the answer's version"):
        verify_answer(Answer.parse(json.dumps(answers["chat"]).encode()), chat_folder(tmp_path / "other", seed=3))


def test_without_proofs_the_draws_are_still_verified(folder: Path) -> None:
    with served_model(folder, with_proofs=False) as bare:
        answer = json.loads(bare.complete(max_tokens=40).model_dump_json())
    assert answer["muster"]["samples"][0]["proofs"] is None
    found = outcomes(answer, folder)
    assert found["computation"] is CheckOutcome.UNKNOWN
    assert found["sampling"] is found["logprobs"] is CheckOutcome.PASSED
    assert not verified(answer, folder).complete
    assert verified(answer, folder, allow_missing_proofs=True).complete


def test_the_command_verifies_a_saved_answer(answers: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "answer.json"
    saved.write_text(json.dumps(answers["completion"], indent=1))
    honest = run_muster("rollouts", "verify", str(saved), "--model", str(folder))
    assert honest.code == 0, honest.err
    assert "nothing is wrong with it" in honest.out
    assert answers["completion"]["muster"]["version"] in honest.out
    asked = {"model": "tiny", "prompt": ["ab", "c"], "n": 3, "max_tokens": 70, "temperature": 0.9}
    request = tmp_path / "request.json"
    for change, words in (
        ({}, "nothing is wrong"),
        ({"prompt": ["ab", "d"]}, "prompts are not those of the request"),
        ({"n": 2}, "has 6 choices, but the request asks for 4"),
        ({"temperature": 1}, "sampling parameters are not those"),
        ({"seed": 1 << 40}, "seed is not that of the request"),
    ):
        request.write_text(json.dumps(asked | change))
        said = run_muster("rollouts", "verify", str(saved), "--model", str(folder), "--request", str(request))
        assert words in said.out, said.err
        assert said.code == (1 if change else 0)
    request.write_text("{}")
    refused = run_muster("rollouts", "verify", str(saved), "--model", str(folder), "--request", str(request))
    assert "the request is not valid: model: Field required" in refused.err
    forged = copy.deepcopy(answers["completion"])
    _token(forged)
    saved.write_text(json.dumps(forged))
    refused = run_muster("rollouts", "verify", str(saved), "--model", str(folder))
    assert refused.code == 1
    assert "token 5 is" in refused.out
    assert run_muster("rollouts", "verify", str(saved), "--model", str(folder), "--units", "3").code == 3
