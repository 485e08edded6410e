"""Which answers share a pass: groups side by side while they are short, one group at a time when they are long.

The prompt without its last token is what the answers of a group share. Its last token belongs to each answer, as its
first input: an answer of T tokens is T inputs and T rows of states, the same as when it was generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidInput

MOST_REPEATED = 8
"""A prompt may be repeated in several passes if it is at most this part of one; longer ones are computed once."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to compute again.

    Args:
        prompt: int32 [P], at least one token.
        output: int32 [T], at least one token.

    Raises:
        InvalidInput: One of them is empty.
    """

    prompt: NDArray[np.int32]
    output: NDArray[np.int32]

    def __post_init__(self) -> None:
        if not len(self.prompt) or not len(self.output):
            raise InvalidInput(f"a prompt of {len(self.prompt)} tokens and an answer of {len(self.output)}")

    @property
    def inputs(self) -> NDArray[np.int32]:
        """int32 [T]: the prompt's last token, and all of the answer but its last."""
        return np.concatenate([self.prompt[-1:], self.output[:-1]])


@dataclass(frozen=True, slots=True)
class Piece:
    """Answers to one prompt that stand together.

    Args:
        prefix: What they share: the prompt without its last token; may be empty.
        answers: Their places among all answers.
    """

    prefix: NDArray[np.int32]
    answers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """All answers, each once.

    Args:
        passes: Pieces that are computed side by side; none has more tokens than the capacity.
        long: Groups that are computed one after another, the prefix first.
    """

    passes: tuple[tuple[Piece, ...], ...]
    long: tuple[Piece, ...]


def pack(answers: Sequence[Answer], *, capacity: int) -> Packing:
    """Lays answers into passes of at most `capacity` tokens.

    Answers with equal prompts form a group, in the order in which their prompts first come.
    """
    passes: list[tuple[Piece, ...]] = []
    long: list[Piece] = []
    laying: list[Piece] = []
    room = capacity
    for prefix, places in _groups(answers):
        if not _is_short(prefix, [len(answers[place].output) for place in places], capacity):
            long.append(Piece(prefix, tuple(places)))
            continue
        taken: list[int] = []
        for place in places:
            need = len(answers[place].output)
            if need + (0 if taken else len(prefix)) > room:
                laying += [Piece(prefix, tuple(taken))] if taken else []
                passes.append(tuple(laying))
                laying, taken, room = [], [], capacity
            room -= need + (0 if taken else len(prefix))
            taken.append(place)
        laying.append(Piece(prefix, tuple(taken)))
    if laying:
        passes.append(tuple(laying))
    return Packing(tuple(passes), tuple(long))


def stretches(lengths: Sequence[int], *, capacity: int) -> list[list[tuple[int, int, int]]]:
    """Cuts the answers of a long group into passes: whole answers together, and longer ones alone, bit by bit.

    Returns:
        For each pass (number of the answer, start, stop); a start other than 0 goes on from the pass before.
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


def _groups(answers: Sequence[Answer]) -> list[tuple[NDArray[np.int32], list[int]]]:
    found: dict[bytes, list[int]] = {}
    for place, answer in enumerate(answers):
        found.setdefault(np.asarray(answer.prompt, np.int32).tobytes(), []).append(place)
    return [(answers[places[0]].prompt[:-1], places) for places in found.values()]


def _is_short(prefix: NDArray[np.int32], lengths: Sequence[int], capacity: int) -> bool:
    whole = len(prefix) + sum(lengths) <= capacity
    return whole or (len(prefix) * MOST_REPEATED <= capacity and len(prefix) + max(lengths) <= capacity)
