"""Positions of tensors in a safetensors file, so that a delta compares corresponding tensors.

Only the builder of a delta uses this. Any other file is one run of bytes: its delta is exact as well, but larger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LONGEST_HEADER: Final = 64 * 1024 * 1024
"""Longest safetensors header; a file with a longer one counts as plain bytes, because the header is read as a whole."""

WORD_OF: Final = {
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
}
"""Bytes per value by safetensors type; other types are compared byte by byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpan:
    """Bytes of a tensor, or bytes between tensors."""

    name: str
    """The tensor's name; empty for anything else."""
    start: int
    length: int
    word: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPair:
    """Bytes of the target and the offset of the corresponding bytes of the base; None if there are none."""

    start: int
    length: int
    base: int | None
    word: int


def spans(path: Path, *, size: int) -> list[TensorSpan]:
    """Returns spans that cover a file in order; a file that is not valid safetensors is one span."""
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
    """Pairs each span of the target with a tensor of the same name and size in the base, else with the same offset."""
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
    """Pairs a header, or a file of another format, with the base's bytes at the same offset, up to the base's end."""
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
