"""Assigns answers to forward passes (decision 43).

in rows        answers that are long relative to their prompts: each has a row of its own, after a copy of its prompt
side by side   groups of short answers to a longer prompt: all in one row, the prompt once, with a mask between answers
one at a time  a group too large for a pass: the prompt is computed into a cache, then the answers follow pass by pass

The answers of a group share the prompt without its last token. The last prompt token is each answer's first input. So
an answer of T tokens has T inputs and T rows of states, as in generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidInput

LEAST_BEHIND_PROMPT = 3
"""An answer gets its own row if its length is at least this multiple of the prompt's length."""
MOST_PADDING = 4
"""At most 1 / `MOST_PADDING` of a row is padding. An answer that needs more padding begins a pass with shorter rows."""
MOST_REPEATED = 8
"""If a group needs several passes, a prompt of at most 1 / `MOST_REPEATED` of a pass is repeated in each of them. A
longer prompt is computed once into a cache.
"""


@dataclass(frozen=True, slots=True)
class PrefillItem:
    """One answer to compute.

    Args:
        prompt: int32 [P], at least one token.
        output: int32 [T], at least one token: all tokens after the prompt, up to the last drawn one.
        places: int64, indices in `output` of the drawn tokens, ascending, the last one T - 1; None if all are drawn.

    Raises:
        InvalidInput: Prompt or output is empty.
    """

    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    places: NDArray[np.int64] | None = None

    def drawn(self, start: int, stop: int) -> tuple[int, NDArray[np.int64]]:
        """Returns the drawn tokens among `output[start:stop]`: number of the first one, and their indices in `output`.

        The number counts drawn tokens from 0.
        """
        if self.places is None:
            return start, np.arange(start, stop)
        first, last = np.searchsorted(self.places, [start, stop])
        return int(first), self.places[first:last]

    def __post_init__(self) -> None:
        if not len(self.prompt) or not len(self.output):
            raise InvalidInput(
                f"a prefill needs at least one token of prompt and answer, not {len(self.prompt)} and "
                f"{len(self.output)}"
            )

    @property
    def inputs(self) -> NDArray[np.int32]:
        """int32 [T]: the prompt's last token, and the answer without its last token."""
        return np.concatenate([self.prompt[-1:], self.output[:-1]])


@dataclass(frozen=True, slots=True)
class PrefillPiece:
    """Answers to one prompt that are computed together.

    Args:
        prefix: The shared tokens: the prompt without its last token; may be empty.
        answers: Indices of the answers.
    """

    prefix: NDArray[np.int32]
    answers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """Assignment of every answer to one forward pass, or to one long group.

    Args:
        rows: For each pass of rows, the indices of its answers, the longest first.
        passes: For each pass of answers side by side, its pieces, which fit into the capacity together.
        long: Groups that are too large for a pass, computed one after another.
    """

    rows: tuple[tuple[int, ...], ...]
    passes: tuple[tuple[PrefillPiece, ...], ...]
    long: tuple[PrefillPiece, ...]


def pack(answers: Sequence[PrefillItem], *, capacity: int, row_capacity: int | None = None) -> Packing:
    """Assigns answers to passes of at most `capacity` tokens, or `row_capacity` (None: the same) if they are rows.

    Answers with equal prompts form a group, in order of the prompts' first occurrence.
    """
    row_capacity = row_capacity or capacity
    in_rows = [place for place, answer in enumerate(answers) if _is_row(answer, row_capacity)]
    rest = sorted({*range(len(answers))} - {*in_rows})
    passes, long = _shared(answers, rest, capacity)
    return Packing(tuple(_rows(answers, in_rows, row_capacity)), passes, long)


def _is_row(answer: PrefillItem, capacity: int) -> bool:
    return row_length(answer) <= capacity and LEAST_BEHIND_PROMPT * (len(answer.prompt) - 1) <= len(answer.output)


def row_length(answer: PrefillItem) -> int:
    """Returns the number of inputs of an answer including its prompt."""
    return len(answer.prompt) - 1 + len(answer.output)


def _rows(answers: Sequence[PrefillItem], places: Sequence[int], capacity: int) -> list[tuple[int, ...]]:
    """Groups answers of similar length; the longest determines the row length."""
    passes: list[tuple[int, ...]] = []
    laying: list[int] = []
    longest = 0
    for place in sorted(places, key=lambda one: -row_length(answers[one])):
        length = row_length(answers[place])
        if laying and (longest * (len(laying) + 1) > capacity or MOST_PADDING * (longest - length) > longest):
            passes.append(tuple(laying))
            laying = []
        longest = longest if laying else length
        laying.append(place)
    return [*passes, tuple(laying)] if laying else passes


def _shared(
    answers: Sequence[PrefillItem], places: Sequence[int], capacity: int
) -> tuple[tuple[tuple[PrefillPiece, ...], ...], tuple[PrefillPiece, ...]]:
    """Returns passes of groups side by side, and the groups that are too large for these passes."""
    passes: list[tuple[PrefillPiece, ...]] = []
    long: list[PrefillPiece] = []
    laying: list[PrefillPiece] = []
    room = capacity
    for prefix, group in _groups(answers, places):
        if not _is_short(prefix, [len(answers[place].output) for place in group], capacity):
            long.append(PrefillPiece(prefix, tuple(group)))
            continue
        taken: list[int] = []
        for place in group:
            need = len(answers[place].output)
            if need + (0 if taken else len(prefix)) > room:
                laying += [PrefillPiece(prefix, tuple(taken))] if taken else []
                passes.append(tuple(laying))
                laying, taken, room = [], [], capacity
            room -= need + (0 if taken else len(prefix))
            taken.append(place)
        laying.append(PrefillPiece(prefix, tuple(taken)))
    if laying:
        passes.append(tuple(laying))
    return tuple(passes), tuple(long)


def stretches(lengths: Sequence[int], *, capacity: int) -> list[list[tuple[int, int, int]]]:
    """Splits the answers of a long group into passes; an answer above the capacity takes several passes.

    Returns:
        For each pass, a list of pieces (index of the answer, start, stop). A start above 0 continues the answer that
        the previous pass began.
    """
    passes: list[list[tuple[int, int, int]]] = []
    room = 0
    for number, length in enumerate(lengths):
        if length > capacity:
            cuts = range(0, length, capacity)
            passes += [[(number, start, min(start + capacity, length))] for start in cuts]
            room = 0
        elif length <= room:
            passes[-1].append((number, 0, length))
            room -= length
        else:
            passes.append([(number, 0, length)])
            room = capacity - length
    return passes


def _groups(answers: Sequence[PrefillItem], places: Sequence[int]) -> list[tuple[NDArray[np.int32], list[int]]]:
    found: dict[bytes, list[int]] = {}
    for place in places:
        found.setdefault(np.asarray(answers[place].prompt, np.int32).tobytes(), []).append(place)
    return [(answers[group[0]].prompt[:-1], group) for group in found.values()]


def _is_short(prefix: NDArray[np.int32], lengths: Sequence[int], capacity: int) -> bool:
    whole = len(prefix) + sum(lengths) <= capacity
    return whole or (len(prefix) * MOST_REPEATED <= capacity and len(prefix) + max(lengths) <= capacity)
