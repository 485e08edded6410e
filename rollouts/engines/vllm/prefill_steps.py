"""Assigns answers to steps of a prefill in which equal beginnings of prompts are computed once.

Answers are computed in the order of their prompts' tokens, so an answer has the longest common beginning with the
answer before it. The layout keeps the keys and values of one prompt only, the current one. Answers refer to its whole
blocks. The keys and values of its last tokens, which fill a block only partly, are written once more into the first
block of each answer, from the same pass.

The last token of a prompt is not shared: it produces the answer's first token, so each answer begins with it.

Shapes: n tokens of a step, r runs, w blocks of the longest run, m writes, k tokens that produced tokens of answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollouts.errors import OutOfMemory
from rollouts.prefill import AnswerSpan, PrefillItem

_NULL_BLOCK = 0
"""vLLM's own block, which pads tables of blocks."""
_EARLIER = -1
"""Instead of a token's index in a step: an earlier step computed the token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillStep:
    """The tokens of one forward pass. A run is a sequence of tokens that continues earlier tokens in its blocks.

    Args:
        tokens_n: int32, the tokens, run by run.
        positions_n: int64, position of each token in its sequence.
        starts: int32 [R + 1], index of each run's first token, and N.
        lengths_r: int32, length of each run's sequence, from its first position to the run's last token.
        blocks_rw: int32, blocks of each run's sequence.
        writes_2m: int64, indices of tokens, and the slots to which their keys and values are written.
        partial: int64, blocks of this step that have unused positions.
        wanted_k: int64, indices of the tokens whose states produced tokens of answers.
        spans: The whole answers to which these states belong, one after another.
    """

    tokens_n: NDArray[np.int32]
    positions_n: NDArray[np.int64]
    starts: NDArray[np.int32]
    lengths_r: NDArray[np.int32]
    blocks_rw: NDArray[np.int32]
    writes_2m: NDArray[np.int64]
    partial: NDArray[np.int64]
    wanted_k: NDArray[np.int64]
    spans: tuple[AnswerSpan, ...]


def steps(items: Sequence[PrefillItem], *, blocks: int, block: int, tokens_at_once: int) -> Iterator[PrefillStep]:
    """Yields steps that together compute every answer once.

    Args:
        items: The answers.
        blocks: Blocks of keys and values, including vLLM's own block 0, which is never used.
        block: Positions of a block.
        tokens_at_once: Maximum tokens of a step; a longer answer has a step of its own.

    Raises:
        OutOfMemory: An answer needs more blocks than there are.
    """
    layout = _Layout(blocks, block)
    for index in sorted(range(len(items)), key=lambda at: items[at].prompt[:-1].astype(">i4").tobytes()):
        if layout.spans and not layout.fits(items[index], tokens_at_once):
            yield layout.finish()
        layout.add(index, items[index])
    if layout.spans:
        yield layout.finish()


class _Layout:
    """A step in progress, and the prompt whose keys and values are kept."""

    def __init__(self, blocks: int, block: int) -> None:
        self._block = block
        self._pool = list(range(blocks - 1, _NULL_BLOCK, -1))
        self._prompt = np.zeros(0, np.int32)
        """The kept tokens."""
        self._rows = np.zeros(0, np.int64)
        """Index of each kept token in this step, or `_EARLIER`."""
        self._blocks: list[int] = []
        """The blocks of the kept tokens."""
        self._begin()

    def _begin(self) -> None:
        self.tokens = 0
        self.spans: list[AnswerSpan] = []
        self._inputs: list[NDArray[np.int32]] = []
        self._runs: list[tuple[int, int, list[int]]] = []
        self._writes: list[NDArray[np.int64]] = []
        self._wanted: list[NDArray[np.int64]] = []
        self._partial: list[int] = []
        self._used: list[int] = []

    def fits(self, item: PrefillItem, tokens_at_once: int) -> bool:
        """Returns True if an answer can join this step."""
        prompt, block = len(item.prompt) - 1, self._block
        common = self._common(item.prompt[:-1])
        kept = len(self._blocks) if common == len(self._prompt) else common // block
        own = -(-(prompt + len(item.output)) // block) - prompt // block
        tokens = self.tokens + prompt - common + len(item.output)
        return tokens <= tokens_at_once and -(-prompt // block) - kept + own <= len(self._pool)

    def add(self, index: int, item: PrefillItem) -> None:
        """Adds an answer, after the tokens of its prompt that are not kept.

        Raises:
            OutOfMemory: There are not enough blocks.
        """
        prompt = item.prompt[:-1]
        self._keep(self._common(prompt))
        self._extend(prompt)
        whole = len(prompt) // self._block
        blocks = [*self._blocks[:whole]]
        blocks += self._take(-(-(len(prompt) + len(item.output)) // self._block) - whole)
        self._used += blocks[whole:]
        self._copy(whole * self._block, blocks)
        rows = self._run(item.inputs, len(prompt), blocks)
        self._wanted.append(rows)
        self.spans.append(AnswerSpan(index, 0, len(item.output)))

    def finish(self) -> PrefillStep:
        """Returns the step, and begins another one, which can use the whole blocks of the kept prompt."""
        starts = np.cumsum([0, *(len(one) for one in self._inputs)])
        widest = max(len(blocks) for _, _, blocks in self._runs)
        whole = len(self._prompt) // self._block
        step = PrefillStep(
            tokens_n=np.concatenate(self._inputs).astype(np.int32),
            positions_n=np.concatenate([np.arange(start, stop) for start, stop, _ in self._runs]),
            starts=starts.astype(np.int32),
            lengths_r=np.array([stop for _, stop, _ in self._runs], np.int32),
            blocks_rw=np.array(
                [blocks + [_NULL_BLOCK] * (widest - len(blocks)) for _, _, blocks in self._runs], np.int32
            ),
            writes_2m=np.concatenate(self._writes, axis=1),
            partial=np.array(sorted({*self._partial}), np.int64),
            wanted_k=np.concatenate(self._wanted),
            spans=tuple(self.spans),
        )
        self._used += self._blocks[whole:]
        del self._blocks[whole:]
        self._prompt = self._prompt[: whole * self._block]
        self._rows = np.full(len(self._prompt), _EARLIER)
        self._pool += self._used
        self._begin()
        return step

    def _common(self, prompt: NDArray[np.int32]) -> int:
        """Returns the number of kept tokens with which a prompt begins and that it can use.

        Keys and values of a part of a block can be copied only if this step computes them.
        """
        most = min(len(prompt), len(self._prompt))
        differ = np.flatnonzero(prompt[:most] != self._prompt[:most])
        count = int(differ[0]) if len(differ) else most
        whole = count // self._block * self._block
        return whole if (self._rows[whole:count] == _EARLIER).any() else count

    def _keep(self, count: int) -> None:
        """Drops all kept tokens but the first ones; the last of these get a block of their own if they share one."""
        if count == len(self._prompt):
            return
        whole = count // self._block
        (self._used if self.spans else self._pool).extend(self._blocks[whole:])
        del self._blocks[whole:]
        self._prompt, self._rows = self._prompt[:count], self._rows[:count]
        if count % self._block:
            self._blocks += self._take(1)
            self._partial += self._blocks[-1:]
            self._copy(whole * self._block, self._blocks)

    def _extend(self, prompt: NDArray[np.int32]) -> None:
        """Computes the tokens of a prompt after those that are kept."""
        start = len(self._prompt)
        if len(prompt) > start:
            self._blocks += self._take(-(-len(prompt) // self._block) - len(self._blocks))
            rows = self._run(prompt[start:], start, [*self._blocks])
            self._prompt, self._rows = prompt, np.concatenate([self._rows, rows])

    def _run(self, tokens: NDArray[np.int32], start: int, blocks: list[int]) -> NDArray[np.int64]:
        """Adds a run whose first token has this position; returns the indices of its tokens."""
        rows = np.arange(self.tokens, self.tokens + len(tokens))
        stop = start + len(tokens)
        self._write(rows, np.arange(start, stop), blocks)
        self._inputs.append(tokens)
        self._runs.append((start, stop, blocks))
        self.tokens += len(tokens)
        if stop % self._block:
            self._partial.append(blocks[-1])
        return rows

    def _copy(self, start: int, blocks: list[int]) -> None:
        """Writes the kept tokens from this position on into other blocks."""
        self._write(self._rows[start:], np.arange(start, len(self._prompt)), blocks)

    def _write(self, rows: NDArray[np.int64], positions: NDArray[np.int64], blocks: list[int]) -> None:
        at = np.array(blocks, np.int64)[positions // self._block]
        self._writes.append(np.stack([rows, at * self._block + positions % self._block]))

    def _take(self, count: int) -> list[int]:
        if count > len(self._pool):
            raise OutOfMemory(
                f"an answer needs {count} more blocks of {self._block} keys and values, but {len(self._pool)} are free"
            )
        return [self._pool.pop() for _ in range(count)]
