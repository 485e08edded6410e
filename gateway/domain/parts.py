"""Reads and writes stored parts of answers."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter

from protocol.wire.serving import AnswerTokens

_parts: TypeAdapter[tuple[AnswerTokens, ...]] = TypeAdapter(tuple[AnswerTokens, ...])


def write_part(tokens: Sequence[AnswerTokens]) -> bytes:
    """Returns the JSON of a part's tokens."""
    return _parts.dump_json(tuple(tokens))


def read_part(content: bytes) -> tuple[AnswerTokens, ...]:
    """Parses a stored part, which was validated before it was stored."""
    return _parts.validate_json(content)
