"""Finds tensors in safetensors files, so that a delta compares tensors of the same name.

Only the builder of a delta uses this module. A file of any other format counts as one span of bytes; the delta of such
a file is exact, too, but may be larger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LONGEST_HEADER: Final = 64 * 1024 * 1024
"""Longest safetensors header in bytes. The whole header is read into memory, so a file with a longer header is treated
as plain bytes."""

WORD_OF: Final = {
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
}
"""Number of bytes per value for each safetensors type; values of other types are compared byte by byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpan:
    """Consecutive bytes of a file: one tensor, or bytes that belong to no tensor."""

    name: str
    """Name of the tensor; empty for bytes that belong to no tensor."""
    start: int
    """Offset of the first byte in the file."""
    length: int
    """Number of bytes."""
    word: int = 1
    """Number of bytes per value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPair:
    """Consecutive bytes of the target, and the bytes of the base to compare them with."""

    start: int
    """Offset of the first byte in the target."""
    length: int
    """Number of bytes."""
    base: int | None
    """Offset of the first byte in the base; None if the base has no corresponding bytes."""
    word: int
    """Number of bytes per value."""


def spans(path: Path, *, size: int) -> list[TensorSpan]:
    """Divides a file into its tensors and the bytes between them; other formats give one span.

    Args:
        path: The file.
        size: Size of the file in bytes.

    Returns:
        Spans that cover the file completely, in order.
    """
    whole = [TensorSpan(name="", start=0, length=size)] if size else []
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LONGEST_HEADER, size - 8):
            return whole
        header = file.read(length)
    try:
        tensors = sorted(_tensors(json.loads(header), start=8 + length), key=lambda span: span.start)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return whole
    found = []
    at = 0
    for tensor in tensors:
        if tensor.start < max(at, 8 + length) or tensor.length < 0 or tensor.start + tensor.length > size:
            return whole
        if tensor.start > at:
            found.append(TensorSpan(name="", start=at, length=tensor.start - at))
        found.append(tensor)
        at = tensor.start + tensor.length
    if at < size:
        found.append(TensorSpan(name="", start=at, length=size - at))
    return [span for span in found if span.length]


def pairs(base: list[TensorSpan], target: list[TensorSpan]) -> Iterator[SpanPair]:
    """Finds for each span of the target the bytes of the base to compare it with.

    A tensor is compared with the base's tensor of the same name, length and word size. Bytes that belong to no tensor
    are compared with the base's bytes at the same offset.
    """
    named = {span.name: span for span in base if span.name}
    end = max((span.start + span.length for span in base), default=0)
    for span in target:
        like = named.get(span.name)
        if like is not None and (like.length, like.word) == (span.length, span.word):
            yield SpanPair(start=span.start, length=span.length, base=like.start, word=span.word)
        elif span.name:
            yield SpanPair(start=span.start, length=span.length, base=None, word=span.word)
        else:
            yield from _unnamed(span, end)


def _unnamed(span: TensorSpan, end: int) -> Iterator[SpanPair]:
    """Pairs bytes that belong to no tensor with the base's bytes at the same offset.

    Bytes beyond the end of the base have no counterpart.
    """
    shared = min(max(end - span.start, 0), span.length)
    if shared:
        yield SpanPair(start=span.start, length=shared, base=span.start, word=1)
    if shared < span.length:
        yield SpanPair(start=span.start + shared, length=span.length - shared, base=None, word=1)


def _tensors(header: dict[str, Any], *, start: int) -> Iterator[TensorSpan]:
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        word = WORD_OF.get(tensor["dtype"], 1)
        if not (isinstance(begin, int) and isinstance(end, int)):
            raise TypeError(name)
        yield TensorSpan(
            name=name, start=start + begin, length=end - begin, word=word if (end - begin) % word == 0 else 1
        )
