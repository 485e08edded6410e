"""Environment `search`: what the tools return, which answers are right, and files that are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import JsonValue

from rollouts.environments import load_environment
from rollouts.environments.dialogue import ModelMessage, ToolCall
from rollouts.environments.errors import BadDataset, BadOptions
from rollouts.environments.registry import locate_options
from rollouts.environments.search import NO_DOCUMENT, NOTHING_FOUND
from rollouts.environments.tools import BAD_ARGUMENTS
from rollouts.environments.validation import CheckedEnvironment
from tests.rollouts.environments.conftest import WriteRows, row

DOCUMENTS = [
    {"title": "Maple", "text": "The maple is a tree. Its syrup is sweet."},
    {"title": "Oak", "text": "The oak is a tree with acorns. " + "Oak wood is hard. " * 20, "source": "x"},
    {"title": "Syrup", "text": "Maple syrup is made from the sap of the maple."},
    {"title": "Élan", "text": "Straße and \uff26ULL width."},
]
QUESTIONS = [
    row({"answers": ["the Oak", "Oaks"]}, task_type="verifiable_search", prompt="Which tree has acorns?"),
    row({"answers": []}, task_type="verifiable_search", prompt="No answer?"),
    row({"ground_truth": "7"}, prompt="Another type?"),
]


def documents_options(path: Path, documents: Sequence[object]) -> dict[str, JsonValue]:
    text = "".join(json.dumps(each) + "\n" for each in documents).encode()
    path.write_bytes(text)
    return {"documents": str(path), "documents_sha256": hashlib.sha256(text).hexdigest()}


@pytest.fixture
def options(write_rows: WriteRows, tmp_path: Path) -> dict[str, JsonValue]:
    return write_rows(QUESTIONS) | documents_options(tmp_path / "documents.jsonl", DOCUMENTS)


@pytest.fixture
def search(options: dict[str, JsonValue]) -> CheckedEnvironment:
    return load_environment("search", options=options)


def replied(environment: CheckedEnvironment, name: str, arguments: dict[str, JsonValue]) -> str:
    episode = environment.begin(environment.prompt(0))
    [message] = episode.reply(ModelMessage(text="", calls=(ToolCall(name, arguments),))).messages
    return message.text


REPLIES: dict[str, tuple[str, dict[str, JsonValue], str]] = {
    "the best first": (
        "search",
        {"query": "maple syrup"},
        "2. Syrup: Maple syrup is made from the sap of the maple.\n0. M",
    ),
    "a tie in file order": ("search", {"query": "TREE"}, "0. Maple: The maple is a tree. Its syrup is sweet.\n1. Oak"),
    "folded characters": ("search", {"query": "strasse full"}, "3. Élan: Straße and \uff26ULL width."),
    "a short text": ("search", {"query": "acorns"}, "1. Oak: The oak is a tree with acorns. Oak wood"),
    "nothing": ("search", {"query": "pine"}, NOTHING_FOUND),
    "no words": ("search", {"query": "?!"}, NOTHING_FOUND),
    "no text": ("search", {"query": 7}, BAD_ARGUMENTS),
    "read": ("read", {"document": "2"}, "Syrup\nMaple syrup is made from the sap of the maple."),
    "read by a number": ("read", {"document": 0}, "Maple\nThe maple is a tree. Its syrup is sweet."),
    "no such document": ("read", {"document": "4"}, NO_DOCUMENT),
    "a huge number": ("read", {"document": 10**300}, BAD_ARGUMENTS),
    "a negative number": ("read", {"document": -1}, BAD_ARGUMENTS),
    "another digit": ("read", {"document": "٣"}, BAD_ARGUMENTS),
    "a truth value": ("read", {"document": True}, BAD_ARGUMENTS),
}


@pytest.mark.parametrize(("name", "arguments", "expected"), REPLIES.values(), ids=REPLIES.keys())
def test_a_tool_replies(name: str, arguments: dict[str, JsonValue], expected: str, search: CheckedEnvironment) -> None:
    assert replied(search, name, arguments).startswith(expected)


@pytest.mark.parametrize(
    ("answer", "task"),
    [
        ("oak", 1.0),
        ("An OAK.", 1.0),
        ("<think>pine?</think> oaks", 1.0),
        ("oak tree", 0.0),
        ("", 0.0),
        ("oak" * 999, 0.0),
    ],
)
def test_an_answer_is_compared_by_its_words(answer: str, task: float, search: CheckedEnvironment) -> None:
    assert search.score(search.prompt(0), answer, finished=True).task == task
    assert search.score(search.prompt(0), answer, finished=False).task == 0.0


def test_the_demonstration_is_right_and_has_three_messages(search: CheckedEnvironment) -> None:
    prompt = search.prompt(0)
    assert search.size() == 1
    assert search.demonstration_turns(prompt) == ["search(Which tree has acorns?)", "read(1)", "the Oak"]
    assert search.score(prompt, search.demonstration(prompt) or "", finished=True).task == 1.0


def test_common_words_are_ignored_in_a_large_file(options: dict[str, JsonValue], tmp_path: Path) -> None:
    many = [{"title": f"n{number}", "text": f"word {number % 50}"} for number in range(200)]
    environment = load_environment("search", options=options | documents_options(tmp_path / "many.jsonl", many))
    assert replied(environment, "search", {"query": "word"}) == NOTHING_FOUND
    found = replied(environment, "search", {"query": "word 7"})
    assert [line.split(".")[0] for line in found.splitlines()] == ["7", "57", "107", "157"]


def test_both_files_are_located_and_their_digests_decide_the_version(
    options: dict[str, JsonValue], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = load_environment("search", options=options).version
    monkeypatch.setenv("MUSTER_DATASETS", str(tmp_path))
    located, files = locate_options("search", options | {"documents": "documents.jsonl"})
    assert [file.name for file in files][1:] == ["documents.jsonl"]
    assert located["documents"] == str(tmp_path / "documents.jsonl")
    assert load_environment("search", options=located).version == version
    other = documents_options(tmp_path / "other.jsonl", DOCUMENTS[:3])
    assert load_environment("search", options=options | other).version != version


BROKEN: dict[str, tuple[list[object], str]] = {
    "no documents": ([], "has no documents"),
    "no text": ([{"title": "a"}], "line 0 is no document"),
    "a list": ([{"title": "a", "text": "b"}, ["a"]], "line 1 is no document"),
    "half a character": ([{"title": "a", "text": "\ud800"}], "can't be encoded"),
    "a long document": ([{"title": "a", "text": "é" * 2100}], "has more than 4000 bytes"),
}


@pytest.mark.parametrize(("documents", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_of_documents_is_refused(
    documents: list[object], why: str, options: dict[str, JsonValue], tmp_path: Path
) -> None:
    with pytest.raises(BadDataset, match=why):
        load_environment("search", options=options | documents_options(tmp_path / "broken.jsonl", documents))


def test_a_changed_file_or_a_wrong_digest_is_refused(options: dict[str, JsonValue], tmp_path: Path) -> None:
    (tmp_path / "documents.jsonl").write_text('{"title": "a", "text": "b"}\n')
    with pytest.raises(BadDataset, match="but the options name"):
        load_environment("search", options=options)
    with pytest.raises(BadOptions, match=r"documents_sha256: .* is no SHA-256"):
        load_environment("search", options=options | {"documents_sha256": "7"})
