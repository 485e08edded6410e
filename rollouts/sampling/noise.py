"""Reproducible noise for Gumbel-max sampling: one number per token of the vocabulary.

The word of token `v` at position `t` of a sample is word `v mod 4` of Philox4x32-10 with

    key     = (d0, d1)
    counter = (v div 4, t, d2, d3)     d0 … d3: the first 16 bytes, as big-endian words, of
                                       SHA-256("muster-sampling-v1" ‖ seed (32) ‖ sample (4, big-endian))

and the token's noise is `g = -log(-log((w + ½)·2⁻³²))`, in double precision, rounded to single. `w + ½` has 33 bits, so
its scaling is exact, no argument of the first logarithm is 0 or 1, and every value is between -3.14 and 22.88. Words
are the same on every machine. Noise differs between machines by at most one unit in the last place of max(|g|, 2⁻²⁰),
and only in the rare case that a double logarithm is inexact near the midpoint of two single-precision numbers.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import InvalidInput
from protocol.runtime.logs import get_logger
from rollouts.sampling.philox import philox_numpy, philox_torch
from rollouts.sampling.philox_rows import PAIRS, Pairs, fill_pairs, fill_words, scratch

_log = get_logger(__name__)

Keys = NDArray[np.uint64]
"""Result of `row_keys`."""

SAMPLING_TAG = b"muster-sampling-v1"
"""Domain separation from other uses of a slot's seed; changing it changes the protocol."""

_COUNTERS_CPU = 1 << 15
"""Counters per block on a CPU. The arrays of a block, 1 MiB together, fit into a core's L2 cache; smaller blocks would
have more call overhead."""
_LATER_FIRST = int(sys.byteorder == "little")
"""1 on a little-endian machine, where the later of the two 32-bit words of a pair comes first in memory; else 0.
`fill_pairs` puts the earlier word into the upper half of 64 bits."""
_COUNTERS_DEVICE = 1 << 21
"""Counters per block on an accelerator: at most about 200 MB of temporary values."""
_TRIED_VOCABULARIES = (1024, 2061)
"""Sizes of vocabularies with which the fused kernel is tested. One is a multiple of 16, because Triton compiles the
kernel separately for such sizes."""


def stream(seed: bytes, sample: int) -> tuple[int, int, int, int]:
    """Returns the four words that identify one sample of a slot.

    Raises:
        InvalidInput: The seed does not have 32 bytes, or the sample's number does not fit in 4 bytes.
    """
    if len(seed) != 32 or not 0 <= sample < 1 << 32:
        raise InvalidInput(f"a seed of {len(seed)} bytes and sample {sample} can't key noise")
    hashed = hashlib.sha256(SAMPLING_TAG + seed + sample.to_bytes(4, "big")).digest()
    zero, one, two, three = (int.from_bytes(hashed[at : at + 4], "big") for at in range(0, 16, 4))
    return zero, one, two, three


def row_keys(streams: Sequence[tuple[int, int, int, int]], positions: Sequence[int]) -> Keys:
    """Returns the noise keys of a batch's rows, uint64 [B, 5]: the row's stream and its position.

    Args:
        streams: Noise stream of each row.
        positions: Position of the drawn token in its answer, from 0; one per row.
    """
    keys = np.empty((len(streams), 5), dtype=np.uint64)
    keys[:, :4] = np.asarray(streams, dtype=np.uint64).reshape(-1, 4)
    keys[:, 4] = positions
    return keys


@dataclass(frozen=True, slots=True)
class Block:
    """Words of some rows and tokens, in the order of computation.

    Args:
        row: The rows.
        token: The tokens; the last few may be past the vocabulary's end.
        words: uint32 [N], with inverted bits. Valid until the next block.
    """

    row: slice
    token: slice
    words: NDArray[np.uint32]

    def tokens_at(self, places: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Returns the row and the token of each index in `words`."""
        wide = (self.token.stop - self.token.start) // 2
        upper, within = np.divmod(places, wide * (self.row.stop - self.row.start))
        row, at = np.divmod(within, wide)
        token = (at >> 1 << 2) + 2 * upper + ((at & 1) ^ _LATER_FIRST)
        return row + self.row.start, token + self.token.start

    def places_of(self, rows: NDArray[np.intp], tokens: NDArray[np.intp]) -> NDArray[np.intp]:
        """Returns the indices in `words` of the given tokens; tokens outside this block are skipped.

        Args:
            rows: Row of each token, in ascending order.
            tokens: The tokens.
        """
        here = slice(*np.searchsorted(rows, (self.row.start, self.row.stop)))
        row, token = rows[here] - self.row.start, tokens[here] - self.token.start
        wide = (self.token.stop - self.token.start) // 2
        upper, at = token >> 1 & 1, (token >> 2 << 1) + ((token & 1) ^ _LATER_FIRST)
        places = (upper * (self.row.stop - self.row.start) + row) * wide + at
        within: NDArray[np.intp] = places[(token >= 0) & (token < 2 * wide)]
        return within


class WordBlocks:
    """Computes words in blocks that fit into a core's L2 cache, reusing the same memory.

    Args:
        rows: Maximum rows at a time.
        vocabulary: Tokens per row.
    """

    def __init__(self, rows: int, vocabulary: int) -> None:
        self._vocabulary, self._quads = vocabulary, -(-vocabulary // 4)
        self._high, self._wide = _block_shape(rows, self._quads, _COUNTERS_CPU)
        self._room = scratch(self._high, self._wide).reshape(-1)

    def pairs(self, keys: Keys) -> Iterator[Block]:
        """Yields all words of some rows with inverted bits, so that large words can be found as small values."""
        for row, column in _blocks(len(keys), self._quads, (self._high, self._wide)):
            pairs = fill_pairs(keys[row], column.start, self._room_of(row, column), inverted=True)
            yield Block(row, slice(4 * column.start, 4 * column.stop), pairs.view(np.uint32).reshape(-1))

    def of(self, keys: Keys) -> Iterator[tuple[slice, slice, NDArray[np.uint32]]]:
        """Yields all words of some rows as (rows, tokens, uint32 [r, t]).

        Each array is valid until the next one is yielded.
        """
        out = np.empty((self._high, self._wide, 2), PAIRS)
        for row, column in _blocks(len(keys), self._quads, (self._high, self._wide)):
            height, width = row.stop - row.start, column.stop - column.start
            pairs = out[:height, :width]
            fill_words(keys[row], column.start, pairs, self._room_of(row, column))
            token = slice(4 * column.start, min(4 * column.stop, self._vocabulary))
            yield row, token, pairs.view(np.uint32).reshape(height, -1)[:, : token.stop - token.start]

    def _room_of(self, row: slice, column: slice) -> Pairs:
        shape = 2, 2, row.stop - row.start, column.stop - column.start
        return self._room[: math.prod(shape)].reshape(shape)


def words(keys: Keys, vocabulary: int) -> NDArray[np.uint32]:
    """Returns all words of some rows, uint32 [B, V].

    `noise` needs less memory, because it never holds all words at once.
    """
    out = np.empty((len(keys), vocabulary), dtype=np.uint32)
    for row, token, block in WordBlocks(len(keys), vocabulary).of(keys):
        out[row, token] = block
    return out


def noise(keys: Keys, vocabulary: int, *, device: torch.device | None = None) -> torch.Tensor:
    """Returns each row's noise, float32 [B, V], on the device.

    On the CPU, numpy computes the noise; on an NVIDIA GPU with triton, one fused kernel; on other devices, torch.
    """
    if device is None or device.type == "cpu":
        return torch.from_numpy(noise_numpy(keys, vocabulary))
    kernel = fused_kernel(device)
    if kernel is None:
        return noise_torch(keys, vocabulary, device=device)
    return kernel(keys, vocabulary, device=device)


@cache
def fused_kernel(device: torch.device) -> Callable[..., torch.Tensor] | None:
    """Returns `noise_triton` if it runs on this device and agrees with `noise_torch`; otherwise None.

    The kernel is optional, because triton needs a C compiler and a directory from which it may load compiled code.

    Raises:
        torch.OutOfMemoryError: The trial did not fit; the next call repeats it.
    """
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return None
    keys = row_keys([stream(bytes(32), sample) for sample in range(3)], range(3))
    try:
        from rollouts.sampling.noise_triton import noise_triton  # noqa: PLC0415 - it imports triton, which is optional

        differ = [
            vocabulary
            for vocabulary in _TRIED_VOCABULARIES
            if not torch.equal(
                noise_triton(keys, vocabulary, device=device), noise_torch(keys, vocabulary, device=device)
            )
        ]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - triton fails in many ways, and the noise is computed without it
        _log.warning("noise-kernel-failed", device=str(device), why=f"{type(error).__name__}: {error}")
        return None
    if differ:
        _log.warning("noise-kernel-differs", device=str(device), vocabularies=differ)
        return None
    return noise_triton


def noise_numpy(keys: Keys, vocabulary: int) -> NDArray[np.float32]:
    """Returns each row's noise, float32 [B, V]; about 1.5 ms per row of 152,000 tokens on one core."""
    out = np.empty((len(keys), vocabulary), dtype=np.float32)
    for row, token, block in WordBlocks(len(keys), vocabulary).of(keys):
        out[row, token] = gumbel_numpy(block.astype(np.float64))
    return out


def noise_at(keys: Keys, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the noise of one token for each row, float32 [B]."""
    token = tokens.astype(np.uint64)
    left, right, two, three, position = keys.T
    lanes = np.stack(philox_numpy((token // 4, position, two, three), (left, right)))
    return gumbel_numpy(lanes[token % 4, np.arange(len(keys))].astype(np.float64))


def noise_torch(keys: Keys, vocabulary: int, *, device: torch.device) -> torch.Tensor:
    """Returns the noise of each row, float32 [B, V], computed on the device, which must have double precision."""
    rows, quads = keys.shape[0], -(-vocabulary // 4)
    on_device = torch.from_numpy(keys.astype(np.int64)).to(device)
    out = torch.empty((rows, quads, 4), dtype=torch.float32, device=device)
    for row, column in _blocks(rows, quads, _block_shape(rows, quads, _COUNTERS_DEVICE)):
        first = torch.arange(column.start, column.stop, device=device)[None, :]
        left, right, two, three, position = on_device[row].T[:, :, None].unbind()
        for lane, word in enumerate(philox_torch((first, position, two, three), (left, right))):
            out[row, column, lane] = gumbel_torch(word)
    return out.reshape(rows, 4 * quads)[:, :vocabulary]


def gumbel_numpy(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Returns the noise of words given as doubles; overwrites `values`."""
    values += 0.5
    values *= 2.0**-32
    for _ in range(2):
        np.log(values, out=values)
        np.negative(values, out=values)
    return values.astype(np.float32)


def gumbel_torch(some_words: torch.Tensor) -> torch.Tensor:
    """Returns the noise of words given as int64."""
    values = (some_words.double() + 0.5) * 2.0**-32
    return values.log_().neg_().log_().neg_().float()


def _block_shape(rows: int, quads: int, most: int) -> tuple[int, int]:
    """Returns a block shape of at most `most` counters: several short rows, or part of a long one."""
    wide = min(quads, most)
    return max(1, min(rows, most // wide)), wide


def _blocks(rows: int, quads: int, shape: tuple[int, int]) -> list[tuple[slice, slice]]:
    """Cuts [rows, quads] into blocks of at most this shape, from left to right, then from top to bottom."""
    high, wide = shape
    starts = product(range(0, rows, high), range(0, quads, wide))
    return [(slice(row, min(row + high, rows)), slice(at, min(at + wide, quads))) for row, at in starts]
