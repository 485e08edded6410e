"""Layouts of a batch's tokens in rows of the model: three layouts with the same loss.

`padded` gives each answer a row. `packed` puts several answers into one row. `shared` computes a prompt once for
several answers of its group: each token of an answer attends to the prompt and to the answer's own earlier tokens.
Positions are those that each answer would have alone, so all three give equal log-probabilities.

The more answers share a prompt, the fewer tokens there are and the longer is a row, with whose length the cost of
attention grows. `shared` lets as many share one as cost least (`_cost`).

An answer of T tokens has T inputs, as in rollouts/prefill: the prompt's last token and all of its own but the last.
What answers share is the prompt without its last token, the prefix. Nothing here loads torch.

Shapes: R rows, T tokens of a row, S answers, N tokens of all answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidInput
from trainer.learning.groups import TrainingGroup
from trainer.packing import NOTHING, Placed, place

_MATRICES = 6
"""A layer's matrices cost a token as much as attention over 6 tokens for each of the model's width: about 12 width^2
multiplications against 2 width for each token of its row (scores and weighted sum; masked ones are computed too)."""

PREFIX = -1
"""The number of no answer: tokens of a prefix, and places with nothing."""


class Layout(StrEnum):
    """Layout of answers in rows."""

    PADDED = "padded"
    PACKED = "packed"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutPiece:
    """A prefix and the inputs of some answers to it, which stand together in a row.

    Args:
        prefix: int32, may be empty.
        answers: Numbers of the answers, in the order of the batch.
        inputs: Of each of them.
    """

    prefix: NDArray[np.int32]
    answers: tuple[int, ...]
    inputs: tuple[NDArray[np.int32], ...]

    @property
    def length(self) -> int:
        """Tokens that it takes."""
        return len(self.prefix) + sum(map(len, self.inputs))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """Rows that go through the model together, and where their answers' log-probabilities come out.

    Args:
        tokens: int64 [R, T]; 0 where nothing is.
        positions: int64 [R, T], of each token in its own sequence.
        pieces: int64 [R, T], the piece that each token is of; `NOTHING` where nothing is.
        owners: int64 [R, T], the answer that each token is an input of; `PREFIX` for those that all may see.
        answers: int64 [S], the answers in here, as the batch numbers them.
        places: int64 [N], where in the flattened rows each answer's inputs are, one answer after another.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    pieces: NDArray[np.int64]
    owners: NDArray[np.int64]
    answers: NDArray[np.int64]
    places: NDArray[np.int64]

    @property
    def plain(self) -> bool:
        """Returns whether each row holds one answer from its start, so that a causal mask suffices."""
        return len(self.answers) == len(self.tokens)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Returns the attention mask, [R, T, T]: earlier tokens of the same answer or of its prompt."""
        same = self.pieces[:, :, None] == self.pieces[:, None, :]
        seen = (self.owners[:, :, None] == self.owners[:, None, :]) | (self.owners[:, None, :] == PREFIX)
        return np.tril(same & seen)


def lay_out(
    groups: Sequence[TrainingGroup], *, layout: Layout, row_tokens: int, rows_at_once: int, width: int
) -> list[PackedBatch]:
    """Lays a batch's answers into rows, each answer once; equal batches always lie alike.

    Args:
        groups: In the order in which their answers are numbered.
        layout: How.
        row_tokens: The most tokens of a row. Rows are as long as the longest piece: the attention of a row costs its
            length squared, and longer rows than that would only be seen as zeros.
        rows_at_once: How many rows of `row_tokens` go through the model together; of shorter ones more do.
        width: Of the model's hidden states, which decides what a row's length costs.

    Raises:
        InvalidInput: There is no answer, or one that is longer with its prompt than a row.
    """
    pieces = min(_choices(groups, layout, row_tokens), key=lambda pieces: _cost(pieces, width=width))
    lengths = [piece.length for piece in pieces]
    if not pieces or max(lengths) > row_tokens:
        raise InvalidInput(
            f"{len(pieces)} pieces of up to {max(lengths, default=0)} tokens for rows of {row_tokens}",
            hint="give rows that hold the longest prompt and the longest answer together, or leave such answers out",
        )
    if layout == Layout.PADDED:
        places = [Placed(row, 0, length) for row, length in enumerate(lengths)]
    else:
        places = place(lengths, max(lengths))
    at_once = max(1, rows_at_once * row_tokens // max(lengths))
    rows = 1 + max(spot.row for spot in places)
    return [_rows(pieces, places, range(first, min(rows, first + at_once))) for first in range(0, rows, at_once)]


def _choices(groups: Sequence[TrainingGroup], layout: Layout, row_tokens: int) -> Iterator[list[LayoutPiece]]:
    """The ways to cut groups into pieces, the one with the fewest tokens first."""
    largest = max((len(group.samples) for group in groups), default=1)
    if layout == Layout.SHARED:
        most = 2 * largest
        while most > 1:
            most = -(-most // 2)
            yield _pieces(groups, row_tokens, most=most)
    else:
        yield _pieces(groups, row_tokens, most=1)


def _cost(pieces: Sequence[LayoutPiece], *, width: int) -> int:
    """Work for the rows of some pieces, in units of one token's attention to another."""
    lengths = [piece.length for piece in pieces]
    length = max(lengths, default=0)
    rows = 1 + max((spot.row for spot in place(lengths, length)), default=0)
    return rows * length * (_MATRICES * width + length)


def _pieces(groups: Sequence[TrainingGroup], row_tokens: int, *, most: int) -> list[LayoutPiece]:
    """Cuts groups into pieces of at most so many answers."""
    pieces: list[LayoutPiece] = []
    answer = 0
    for group in groups:
        inputs = [np.concatenate([group.prompt_tokens[-1:], sample.output_tokens[:-1]]) for sample in group.samples]
        prefix = group.prompt_tokens[:-1]
        for span in _spans([len(each) for each in inputs], row_tokens - len(prefix), most=most):
            numbers = tuple(answer + number for number in span)
            pieces.append(LayoutPiece(prefix=prefix, answers=numbers, inputs=tuple(inputs[number] for number in span)))
        answer += len(inputs)
    return pieces


def _spans(lengths: Sequence[int], room: int, *, most: int) -> Iterator[range]:
    """Splits a group's answers into those that share a piece: as many in turn as are allowed and a row has room for."""
    first, used = 0, 0
    for number, length in enumerate(lengths):
        if number > first and (number - first >= most or used + length > room):
            yield range(first, number)
            first, used = number, 0
        used += length
    yield range(first, len(lengths))


def _rows(pieces: Sequence[LayoutPiece], places: Sequence[Placed], rows: range) -> PackedBatch:
    here = [(number, spot) for number, spot in enumerate(places) if spot.row in rows]
    shape = (len(rows), max(spot.start + spot.length for _, spot in here))
    tokens, positions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    numbers, owners = np.full(shape, NOTHING, dtype=np.int64), np.full(shape, PREFIX, dtype=np.int64)
    starts: dict[int, tuple[int, int]] = {}
    for number, spot in here:
        piece, row, at = pieces[number], spot.row - rows.start, spot.start
        shared = len(piece.prefix)
        numbers[row, at : at + spot.length] = number
        tokens[row, at : at + shared] = piece.prefix
        positions[row, at : at + shared] = np.arange(shared)
        at += shared
        for answer, inputs in zip(piece.answers, piece.inputs, strict=True):
            span = slice(at, at + len(inputs))
            tokens[row, span], owners[row, span] = inputs, answer
            positions[row, span] = np.arange(shared, shared + len(inputs))
            starts[answer] = row * shape[1] + at, len(inputs)
            at += len(inputs)
    answers = sorted(starts)
    return PackedBatch(
        tokens=tokens,
        positions=positions,
        pieces=numbers,
        owners=owners,
        answers=np.array(answers, dtype=np.int64),
        places=np.concatenate([np.arange(start, start + length) for start, length in map(starts.__getitem__, answers)]),
    )
