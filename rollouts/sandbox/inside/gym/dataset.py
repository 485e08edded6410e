"""Job that makes one prompt of a reasoning-gym dataset, or scores one answer.

The server makes the dataset from a recipe's options (`prepare`), and jobs inherit it. Clock and random numbers are
fixed, so equal options and an equal index give equal prompts on every machine. A job that makes a prompt returns the
dataset's entry, encoded as plain data; a job that scores an answer receives this entry. If an entry is not plain data,
the scoring job makes it again.

    run({"index": 7}, dataset)                              ← {"question": "…", "answer": "…", "entry": "{…}"}
    run({"index": 7, "entry": "{…}", "given": "…"}, dataset) ← {"score": 0.05}   or   {"fault": "ValueError"}
"""

from __future__ import annotations

import decimal
import json
import random
import re
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import numpy as np
import time_machine
from sympy import parse_expr  # type: ignore[import-untyped]

from .. import values
from ..program import OUT_OF_MEMORY
from . import stand_ins

stand_ins.install()

from reasoning_gym.factory import DATASETS  # noqa: E402 - needs the stand-ins

_ANSWER = 3
_TOLERANCE = 1e-4
_DECIMALS = 6
"""Decimals to which scores are rounded, because three scorers use `math.exp`, whose last bit depends on the machine's C
library."""
_NOW = datetime(2026, 1, 1, tzinfo=UTC)

_SOLUTIONS = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}
"""Key of an example answer in the metadata of an entry, for datasets whose prompts have several right answers."""

time_machine.travel(_NOW, tick=False).start()


def prepare(payload: dict[str, Any]) -> object:
    """Makes a dataset; makes and scores its first item, so that the library loads its lazily imported modules.

    Raises:
        Exception: The library refuses the options.
    """
    made, described = DATASETS[payload["dataset"]]
    _seed("prepare")
    decimal.setcontext(decimal.Context())
    dataset = made(config=described(**payload["config"], seed=payload["seed"], size=payload["size"]))
    entry = dataset[0]
    dataset.score_answer(_solution(payload["dataset"], entry), entry)
    return payload["dataset"], dataset, decimal.getcontext()


def run(payload: dict[str, Any], prepared: tuple[str, Any, decimal.Context]) -> int:
    """Makes an item or scores an answer; writes one JSON object to descriptor 3."""
    name, dataset, context = prepared
    decimal.setcontext(context)  # `decimal_arithmetic` sets the precision of the whole server process when it is made
    try:
        found = (
            _scored(name, dataset, **payload) if "given" in payload else _made(name, _item(dataset, payload["index"]))
        )
    except MemoryError:
        return OUT_OF_MEMORY
    with open(_ANSWER, "w", encoding="utf-8") as answer:
        json.dump(found, answer)
    return 0


def _item(dataset: Any, index: int) -> dict[str, Any]:  # noqa: ANN401 - an untyped library's object
    _seed(f"{dataset.seed} {index}")
    entry: dict[str, Any] = dataset[index]
    return entry


def _made(name: str, entry: dict[str, Any]) -> dict[str, object]:
    try:
        encoded = values.encode(entry)
    except TypeError:  # e.g. a fraction
        encoded = ""
    return {"question": str(entry["question"]), "answer": _solution(name, entry), "entry": encoded}


def _scored(name: str, dataset: Any, *, index: int, entry: str, given: str) -> dict[str, object]:  # noqa: ANN401 - likewise
    item: Any = values.decode(entry) if entry else _item(dataset, index)
    _seed("score")
    try:
        score = round(float(dataset.score_answer(given, item)), _DECIMALS)
        return {"score": score if _is_earned(name, given, item) else 0.0}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - an answer on which the library raises is wrong
        return {"fault": type(error).__name__}


def _is_earned(name: str, given: str, item: dict[str, Any]) -> bool:
    """Returns False for an answer that the library's scorer rewards by mistake."""
    return name not in _OWN_CHECKS or _OWN_CHECKS[name](given, item)


def _is_close(given: str, item: dict[str, Any]) -> bool:
    """Returns whether a probability is right.

    The scorer of `coin_flip` gives every prefix of the right answer the full score, for example `0` for `0.375`.
    """
    return abs(float(Fraction(given.replace(",", ""))) - float(item["answer"])) <= _TOLERANCE


def _makes_24(given: str, item: dict[str, Any]) -> bool:
    """Returns whether an expression has the prompt's numbers, and is exactly 24.

    The scorer of `puzzle24` does not compare the numbers, only how many there are, so that 1*2*3*4 solves every prompt.
    It also drops decimals of the result.
    """
    used = sorted(int(number) for number in re.findall(r"[0-9]+", given))
    return used == sorted(abs(number) for number in item["metadata"]["numbers"]) and bool(parse_expr(given) == 24)


_OWN_CHECKS: Mapping[str, Callable[[str, dict[str, Any]], bool]] = {"coin_flip": _is_close, "puzzle24": _makes_24}
"""Additional checks for datasets whose scorers give the full score to answers that do not solve the prompt."""


def _solution(name: str, entry: dict[str, Any]) -> str | None:
    """Returns a right answer of an entry; None if the entry has none."""
    answer = entry["answer"]
    if answer is None and name in _SOLUTIONS:
        answer = entry["metadata"][_SOLUTIONS[name]]
    return answer if answer is None or isinstance(answer, str) else json.dumps(answer)


def _seed(text: str) -> None:
    """Seeds the generators that are shared by all code of the process."""
    random.seed(text)
    np.random.seed(zlib.crc32(text.encode()))
