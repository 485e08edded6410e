"""Environment `search`: questions about a file of documents, which the model searches and reads with two tools.

The documents are JSON lines, `{"title": "…", "text": "…"}`; the index of a line is the document's number. The questions
are rows of a data set with the task type `verifiable_search` and `{"answers": ["…", …]}` as `verification_info`. The
message without a call is the answer: it is right if it equals one of the answers, apart from case, punctuation and
articles.

Scores of documents are whole numbers, and ties are in file order, so that every machine finds the same documents.
"""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from rollouts.environments.datasets import (
    Dataset,
    DatasetOptions,
    DatasetProblem,
    FileDigest,
    JsonRows,
    absolute,
    check_file,
    dataset_file,
)
from rollouts.environments.dialogue import DialogueEnvironment, Episode, GivenMessage, Role, Tool, score_of_one
from rollouts.environments.errors import BadDataset
from rollouts.environments.factory import Family, SandboxSource
from rollouts.environments.interface import Environment, Prompt, Score
from rollouts.environments.tools import MOST_BYTES, BadArgumentsError, CallableTool, ToolEpisode, text_argument
from rollouts.environments.validation import has_encoding

_MOST_DOCUMENTS = 100_000
_MOST_CHARACTERS = 256 * 1024 * 1024
_LONGEST_DOCUMENT = MOST_BYTES - 96
"""Maximum bytes of a title and text together, so that `read` shows them whole."""
_FOUND = 5
_SNIPPET = 120
_MOST_QUERY_WORDS = 32
_MOST_OF_A_WORD = 3
"""A word counts at most this often in a document; in the title it counts as twice."""
_COMMON = 8
"""A word that is in more than one of so many documents is ignored, if there are `_MANY` documents or more."""
_MANY = 64
_LONGEST_ANSWER = 1000
_WORD = re.compile(r"\w+")
_ARTICLES = frozenset({"a", "an", "the"})
NOTHING_FOUND = "no document has these words"
NO_DOCUMENT = "error: there is no such document; search returns the numbers"


def _text_tool(name: str, description: str, parameter: str, meaning: str) -> Tool:
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {parameter: {"type": "string", "description": meaning}},
        "required": [parameter],
    }
    return Tool(name=name, description=description, parameters=schema)


SEARCH = _text_tool(
    "search", f"Finds up to {_FOUND} documents with words of the query.", "query", "words that the document has"
)
READ = _text_tool("read", "Returns the text of a document.", "document", "number of the document, such as 12")


class SearchOptions(DatasetOptions):
    """Options of `search`: the questions' file as for `math`, and the documents' file."""

    local: ClassVar[frozenset[str]] = frozenset({"path", "documents"})

    documents: Annotated[str, Field(min_length=1, max_length=4096)]
    """Path of the documents on this machine."""
    documents_sha256: FileDigest
    """Digest of the documents' file."""

    def located(self) -> tuple[Self, tuple[Path, ...]]:
        """Returns the options with absolute paths, and the two files."""
        located, files = super().located()
        documents = absolute(dataset_file(self.documents))
        return located.model_copy(update={"documents": str(documents)}), (*files, documents)


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class _Postings:
    """Documents with a word, in file order, and the word's weight in each."""

    documents: array[int]
    weights: array[int]


class Documents:
    """A searchable file of documents.

    Args:
        path: The file.
        sha256: Its digest.

    Raises:
        BadDataset: The file is missing, is another one, or has malformed or too many documents.
    """

    def __init__(self, path: Path, sha256: str) -> None:
        check_file(path, sha256)
        self._texts: list[tuple[str, str]] = []
        self._words: dict[str, _Postings] = {}
        characters = 0
        for document in _documents(path):
            if len(self._texts) >= _MOST_DOCUMENTS or characters > _MOST_CHARACTERS:
                raise BadDataset(
                    f"{path} has more than {_MOST_DOCUMENTS} documents or {_MOST_CHARACTERS} characters",
                    hint="split the file into several environments",
                )
            self._add(document)
            characters += len(document.title) + len(document.text)
        if not self._texts:
            raise BadDataset(f"{path} has no documents", hint='write one {"title": "…", "text": "…"} on each line')

    def __len__(self) -> int:
        return len(self._texts)

    def search(self, query: str) -> list[int]:
        """Returns the numbers of the best documents, the best one first.

        A document's score is the sum over the query's words of the word's weight there, times the number of binary
        digits of the share of documents without it.
        """
        scores: Counter[int] = Counter()
        total = len(self._texts)
        for word in list(dict.fromkeys(words(query)))[:_MOST_QUERY_WORDS]:
            postings = self._words.get(word)
            if postings is None or (total >= _MANY and len(postings.documents) * _COMMON > total):
                continue
            rarity = (total // len(postings.documents)).bit_length()
            for document, weight in zip(postings.documents, postings.weights, strict=True):
                scores[document] += rarity * weight
        return sorted(scores, key=lambda document: (-scores[document], document))[:_FOUND]

    def title(self, number: int) -> str:
        """Returns a document's title."""
        return self._texts[number][0]

    def text(self, number: int) -> str:
        """Returns a document's text."""
        return self._texts[number][1]

    def _add(self, document: _Document) -> None:
        counts: Counter[str] = Counter()
        for word in words(document.title):
            counts[word] += 2
        for word in words(document.text):
            counts[word] += 1
        for word, count in counts.items():
            postings = self._words.setdefault(word, _Postings(array("I"), array("B")))
            postings.documents.append(len(self._texts))
            postings.weights.append(min(count, _MOST_OF_A_WORD))
        self._texts.append((document.title, document.text))


class Search:
    """The `search` environment; see the module docstring."""

    name = "search"

    def __init__(self, version: str, options: SearchOptions) -> None:
        self.version = version
        self._problems = Dataset(options, task_types=("verifiable_search",), usable=_usable)
        self._documents = Documents(dataset_file(options.documents), options.documents_sha256)

    def size(self) -> int | None:
        """Returns the number of questions."""
        return len(self._problems)

    def prompt(self, index: int) -> Prompt:
        """Returns a row's question."""
        problem = self._problems[index]
        return Prompt(index=index, text=problem.prompt, data={"answers": _answers(problem.info)})

    def begin(self, prompt: Prompt) -> Episode:
        """Begins a dialogue."""
        answers = prompt.data["answers"]
        wanted = {normal(answer) for answer in answers} if isinstance(answers, list) else set()

        def judge(answer: str | None, finished: bool) -> Score:
            given = "" if answer is None else answer.rpartition("</think>")[2]
            right = finished and answer is not None and len(given) <= _LONGEST_ANSWER and normal(given) in wanted
            return Score(task=float(right), parts={"answered": float(answer is not None)})

        tools = [CallableTool(tool=SEARCH, run=self._search), CallableTool(tool=READ, run=self._read)]
        return ToolEpisode([GivenMessage(role=Role.USER, text=prompt.text)], tools, judge)

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Returns the score of an answer without calls."""
        environment: DialogueEnvironment = self
        return score_of_one(environment, prompt, completion, finished=finished)

    def demonstration(self, prompt: Prompt) -> str:
        """Returns the first right answer."""
        answers = prompt.data["answers"]
        return str(answers[0]) if isinstance(answers, list) else ""

    def demonstration_turns(self, prompt: Prompt) -> Sequence[str] | None:
        """Returns a search with the question's own words, the best document that has an answer, and the answer.

        None if the search does not find such a document.
        """
        answer = self.demonstration(prompt)
        for number in self._documents.search(prompt.text):
            if normal(answer) in normal(self._documents.text(number)):
                return [f"search({prompt.text})", f"read({number})", answer]
        return None

    def _search(self, arguments: Mapping[str, JsonValue]) -> str:
        found = self._documents.search(text_argument(arguments, "query"))
        lines = [f"{number}. {self._documents.title(number)}: {self._snippet(number)}" for number in found]
        return "\n".join(lines) if lines else NOTHING_FOUND

    def _read(self, arguments: Mapping[str, JsonValue]) -> str:
        given = arguments.get("document")
        if isinstance(given, int) and not isinstance(given, bool):  # models often write a number for a number's text
            arguments = {**arguments, "document": str(given)[:20]}
        text = text_argument(arguments, "document").strip()
        if not text.isascii() or not text.isdigit() or len(text) > len(str(_MOST_DOCUMENTS)):
            raise BadArgumentsError
        number = int(text)
        if number >= len(self._documents):
            return NO_DOCUMENT
        return f"{self._documents.title(number)}\n{self._documents.text(number)}"

    def _snippet(self, number: int) -> str:
        text = " ".join(self._documents.text(number)[: 2 * _SNIPPET].split())
        return text if len(text) <= _SNIPPET else f"{text[:_SNIPPET]}…"


def words(text: str) -> list[str]:
    """Returns the words of the text's first 1,000 characters without regard to case.

    Normalising takes time in proportion to the square of the text's length.
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def normal(text: str) -> str:
    """Returns a text's words without articles, so that equal answers are equal texts."""
    return " ".join(word for word in words(text) if word not in _ARTICLES)


def _documents(path: Path) -> Iterator[_Document]:
    for number, row in enumerate(JsonRows(path)):
        try:
            found = _Document.model_validate(json.loads(row))
        except (ValidationError, ValueError, RecursionError) as error:
            raise BadDataset(
                f"{path}: line {number} is no document: {str(error).splitlines()[0][:200]}",
                hint='every line is a JSON object, {"title": "…", "text": "…"}',
            ) from error
        if not has_encoding(found.title) or not has_encoding(found.text):
            raise BadDataset(f"{path}: line {number} has a text that can't be encoded")
        if len(f"{found.title}\n{found.text}".encode()) > _LONGEST_DOCUMENT:
            raise BadDataset(
                f"{path}: the document on line {number} has more than {_LONGEST_DOCUMENT} bytes",
                hint="split long documents into several lines, such as one for each section",
            )
        yield found


def _answers(info: Mapping[str, object]) -> list[str]:
    found = info.get("answers")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _usable(problem: DatasetProblem) -> bool:
    answers = _answers(problem.info)
    return bool(answers) and all(has_encoding(each) and normal(each) for each in answers)


def _build(version: str, options: SearchOptions, _: SandboxSource) -> Environment:
    return Search(version, options)


family = Family(
    name="search",
    version="1",
    summary="questions about a file of documents, with tools that search and read it",
    options=SearchOptions,
    build=_build,
    depends_on=lambda: f"ucd{unicodedata.unidata_version}",
)
