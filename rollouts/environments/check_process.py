"""`python -m rollouts.environments.check_process`: makes and scores items of an environment for `check.py`.

Reads one JSON object from standard input and writes one JSON line for the environment and for each item. The parent
sets hash seed, time zone and locale in this process's environment variables; this module moves the clock.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO

import time_machine

from protocol.errors import MusterError
from rollouts.environments.check_scripts import beginning, plain, play_scripts
from rollouts.environments.errors import EnvironmentFault, NoSuchPrompt
from rollouts.environments.interface import Environment, Prompt
from rollouts.environments.registry import load_environment
from rollouts.environments.validation import CheckedEnvironment

FIXED_ANSWERS = {
    "nothing": "",
    "a zero": "0",
    "nothing in tags": "<answer></answer>",
    "a zero in tags": "<answer>0</answer>",
    "a one": "1",
    "yes": "yes",
    "a space": " ",
    "100,000 letters": "a" * 100_000,
    "brackets": "(" * 500 + "[{" * 500,
    "unusual characters": "\x00\u202e\ud7ff\U0001f9ea \\boxed{",
}
"""Fixed answers that are scored for every prompt; a key is the answer's name in messages."""

_TAG_OR_LETTER = re.compile(r"</?\w+>|([^\W_])")
"""A tag such as `<answer>`, or a letter or digit outside of tags."""

_ROOM = "bound the memory of every method for any text; if honest items need more, raise --memory-mib"


def main() -> None:
    """Reads the request from standard input and writes the result lines to standard output."""
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # an environment that prints must not break the protocol
    ceiling = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = request["memory_bytes"]
    memory = memory if ceiling == resource.RLIM_INFINITY else min(memory, ceiling)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        for line in _lines(request):
            _write(out, line)
    except MusterError as error:
        grew = isinstance(error.__cause__, MemoryError)
        _write(out, {"fault": error.detail, "hint": _ROOM if grew else error.hint})
    except MemoryError:
        fault = f"environment {request['name']} needs more than {memory >> 20} MiB of memory"
        _write(out, {"fault": fault, "hint": _ROOM})


def _lines(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        if days := request["clock_days"]:
            stack.enter_context(time_machine.travel(datetime.now(UTC) + timedelta(days=days), tick=True))
        environment = load_environment(request["name"], version=request["version"], options=request["options"])
        size = environment.size()
        scored = set(request.get("scored", request["indices"]))
        yield {
            "version": environment.version,
            "size": size,
            "rewards": environment.rewards,
            "bounds": _refuses_outside(environment, size),
        }
        for index in request["indices"]:
            if size is None or index < size:
                neighbour = index - 1 if index - 1 in request["indices"] else None
                yield item_of(environment, index, with_scores=index in scored, neighbour=neighbour)


def _refuses_outside(environment: Environment, size: int | None) -> str:
    """Returns a fault if the environment does not refuse indices outside its range; otherwise an empty text."""
    for index in [-1] if size is None else [-1, size]:
        try:
            environment.prompt(index)
        except NoSuchPrompt:
            continue
        except EnvironmentFault as error:
            return f"{error.detail}; it must raise NoSuchPrompt, as `check_index` does"
        return f"prompt({index}) returns a prompt; it must raise NoSuchPrompt, as `check_index` does"
    return ""


def item_of(
    environment: CheckedEnvironment, index: int, *, with_scores: bool = True, neighbour: int | None = None
) -> dict[str, Any]:
    """Returns a prompt, its demonstration, and the scores of several answers, as JSON values.

    Args:
        environment: The environment.
        index: Index of the prompt.
        with_scores: Whether answers are scored and dialogues played; if not, the result has only the prompt's text and
            the beginning of its dialogue.
        neighbour: Index of another prompt; its demonstration is scored too, as a wrong answer in the right form. None
            for no such answer.
    """
    began = time.perf_counter()
    prompt = environment.prompt(index)
    made = time.perf_counter()
    if not with_scores:
        fields = {"text": prompt.text, **beginning(environment, prompt)}
        return {"index": index, "fields": fields, "seconds": {"prompt": made - began, "scores": 0.0}}
    demonstration = environment.demonstration(prompt)
    answers = {**FIXED_ANSWERS, "the prompt's own text": prompt.text}
    if demonstration is not None:
        answers["the demonstration"] = demonstration
        answers["the demonstration with a changed letter"] = _near_miss(demonstration)
    if neighbour is not None:
        other = environment.demonstration(environment.prompt(neighbour))
        if other is not None:
            answers[f"the demonstration of prompt {neighbour}"] = other
    demonstrated = time.perf_counter()
    scores = {name: _score(environment, prompt, answer, finished=True) for name, answer in answers.items()}
    scores["nothing, cut off"] = _score(environment, prompt, "", finished=False)
    scored = time.perf_counter()
    dialogues, unrepeatable = play_scripts(environment, prompt)
    return {
        "index": index,
        "fields": {
            "text": prompt.text,
            "data": plain(prompt.data),
            "demonstration": demonstration,
            **{f"score of {name}": score for name, score in scores.items()},
            **beginning(environment, prompt),
            **dialogues,
        },
        "unrepeatable": unrepeatable,
        "seconds": {
            "prompt": made - began,
            "scores": (scored - demonstrated) / len(scores),
            "dialogues": (time.perf_counter() - scored) / (2 * len(dialogues)) if dialogues else 0.0,
        },
    }


def _near_miss(demonstration: str) -> str:
    """Returns the demonstration with its last letter or digit changed, ignoring tags such as `<answer>`."""
    letters = [found for found in _TAG_OR_LETTER.finditer(demonstration) if found[1]]
    if not letters:
        return f"{demonstration}1"
    start, end = letters[-1].span()
    return demonstration[:start] + ("2" if letters[-1][1] == "1" else "1") + demonstration[end:]


def _score(environment: Environment, prompt: Prompt, answer: str, *, finished: bool) -> dict[str, float]:
    found = environment.score(prompt, answer, finished=finished)
    return {"task": found.task, **{name: float(value) for name, value in sorted(found.parts.items())}}


def _write(out: TextIO, line: Mapping[str, Any]) -> None:
    out.write(json.dumps(line) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
