"""Arranges a batch's tokens in input rows of the model.

There are three layouts, which give the same loss.

`padded` gives each answer a row. `packed` puts several answers into one row. `shared` computes a prompt once for
several answers of its group: each token of an answer attends to the prompt and to the answer's own earlier tokens.
Each answer has the position ids that it would have in a row of its own, so all three layouts give equal
log-probabilities.

With more answers per shared prompt there are fewer tokens but longer rows, and the cost of attention grows with the
row's length. `shared` chooses the number of answers per prompt with the lowest cost (`_cost`).

An answer of T tokens has T inputs, as in rollouts/prefill: the prompt's last token, and all tokens of the answer except
its last one. Answers share the prefix: the prompt without its last token. This module does not import torch.

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
from trainer.learning.packing import NOTHING, Placed, place

_MATRICES = 6
"""Cost of a layer's weight matrices per token, as a multiple of the model's width.

The unit of cost is the attention of one token to one other token, which takes 2 * width multiplications (score and
weighted sum); a masked token costs the same. The matrices take about 12 * width^2 multiplications per token, which is
6 * width units.
"""

PREFIX = -1
"""Value in `PackedBatch.owners` for positions that belong to no answer: prefix tokens and padding."""


class Layout(StrEnum):
    """Layout of answers in rows."""

    PADDED = "padded"
    """One answer per row."""
    PACKED = "packed"
    """Several answers per row, each with its own copy of the prompt."""
    SHARED = "shared"
    """Several answers per row; answers of a group share a copy of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutPiece:
    """A prefix and the inputs of its answers, which are placed together in a row.

    Args:
        prefix: The prompt without its last token, int32; may be empty.
        answers: Indices of the answers in the batch.
        inputs: Input tokens of each answer.
        places: Indices of those of each answer's inputs that produce a drawn token.
    """

    prefix: NDArray[np.int32]
    answers: tuple[int, ...]
    inputs: tuple[NDArray[np.int32], ...]
    places: tuple[NDArray[np.int64], ...]

    @property
    def length(self) -> int:
        """Returns the number of tokens of the piece."""
        return len(self.prefix) + sum(map(len, self.inputs))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """Rows that go through the model together, and the positions of their answers' tokens.

    Args:
        tokens: int64 [R, T]; 0 for padding.
        positions: int64 [R, T], position of each token in its own sequence.
        pieces: int64 [R, T], index of each token's piece; `NOTHING` for padding.
        owners: int64 [R, T], index of each token's answer; `PREFIX` for prefix tokens, which all answers attend to.
        answers: int64 [S], indices of the answers in the batch.
        places: int64 [N], indices in the flattened rows of the inputs that produce drawn tokens, one answer after
            another. In a single answer all inputs do; in a dialogue those before given tokens do not.
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
    """Arranges a batch's answers in rows, each answer once; equal batches give equal rows.

    Args:
        groups: Groups in the order in which their answers are numbered.
        layout: The layout.
        row_tokens: Maximum tokens of a row. Rows are only as long as the longest piece, because attention costs the
            square of the row's length, padding included.
        rows_at_once: Number of rows of `row_tokens` tokens in one forward pass. If the actual rows are shorter, a pass
            has more of them.
        width: Hidden size of the model, used to estimate costs.

    Raises:
        InvalidInput: There is no answer, or an answer with its prompt is longer than a row.
    """
    pieces = min(_choices(groups, layout, row_tokens), key=lambda pieces: _cost(pieces, width=width))
    lengths = [piece.length for piece in pieces]
    if not pieces or max(lengths) > row_tokens:
        raise InvalidInput(
            f"the batch has {len(pieces)} pieces of up to {max(lengths, default=0)} tokens, and rows of {row_tokens}",
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
    """Yields alternative ways to cut groups into pieces, from the fewest tokens to the most.

    The caller chooses the alternative with the lowest cost. For `shared`, each alternative has half the previous
    maximum number of answers per piece; the other layouts have only one alternative.
    """
    largest = max((len(group.samples) for group in groups), default=1)
    if layout == Layout.SHARED:
        most = 2 * largest
        while most > 1:
            most = -(-most // 2)
            yield _pieces(groups, row_tokens, most=most)
    else:
        yield _pieces(groups, row_tokens, most=1)


def _cost(pieces: Sequence[LayoutPiece], *, width: int) -> int:
    """Returns the cost of the rows that hold the pieces.

    The unit is one token's attention to another token.
    """
    lengths = [piece.length for piece in pieces]
    length = max(lengths, default=0)
    rows = 1 + max((spot.row for spot in place(lengths, length)), default=0)
    return rows * length * (_MATRICES * width + length)


def _pieces(groups: Sequence[TrainingGroup], row_tokens: int, *, most: int) -> list[LayoutPiece]:
    """Cuts groups into pieces with at most a given number of answers."""
    pieces: list[LayoutPiece] = []
    answer = 0
    for group in groups:
        inputs = [np.concatenate([group.prompt_tokens[-1:], sample.inputs]) for sample in group.samples]
        places = [sample.places for sample in group.samples]
        prefix = group.prompt_tokens[:-1]
        for span in _spans([len(each) for each in inputs], row_tokens - len(prefix), most=most):
            numbers = tuple(answer + number for number in span)
            pieces.append(
                LayoutPiece(
                    prefix=prefix,
                    answers=numbers,
                    inputs=tuple(inputs[number] for number in span),
                    places=tuple(places[number] for number in span),
                )
            )
        answer += len(inputs)
    return pieces


def _spans(lengths: Sequence[int], room: int, *, most: int) -> Iterator[range]:
    """Yields the range of answers of each piece of a group.

    A piece has as many answers as fit into a row beside the prefix, and at most `most`.

    Args:
        lengths: Number of input tokens of each answer.
        room: Number of tokens that a row has beside the prefix.
        most: Maximum number of answers of a piece.
    """
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
    drawn: dict[int, NDArray[np.int64]] = {}
    for number, spot in here:
        piece, row, at = pieces[number], spot.row - rows.start, spot.start
        shared = len(piece.prefix)
        numbers[row, at : at + spot.length] = number
        tokens[row, at : at + shared] = piece.prefix
        positions[row, at : at + shared] = np.arange(shared)
        at += shared
        for answer, inputs, places_of in zip(piece.answers, piece.inputs, piece.places, strict=True):
            span = slice(at, at + len(inputs))
            tokens[row, span], owners[row, span] = inputs, answer
            positions[row, span] = np.arange(shared, shared + len(inputs))
            drawn[answer] = row * shape[1] + at + places_of
            at += len(inputs)
    answers = sorted(drawn)
    return PackedBatch(
        tokens=tokens,
        positions=positions,
        pieces=numbers,
        owners=owners,
        answers=np.array(answers, dtype=np.int64),
        places=np.concatenate([drawn[answer] for answer in answers]),
    )
