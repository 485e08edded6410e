"""Encodes Python values as JSON, so that two processes that don't trust each other exchange plain data, never code.

Numbers, texts, Booleans, None and lists keep their form in JSON. Other values become `{"tuple": […]}`, `{"set": […]}`,
`{"frozenset": […]}`, `{"bytes": "hex"}` and `{"dict": [[key, value], …]}`. Decoded values have exactly these built-in
types, so a sender can't change how they are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

_PLAIN: tuple[type, ...] = (type(None), bool, int, float, str)
_SEQUENCES: dict[str, Callable[[Iterable[object]], object]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value: object) -> str:
    """Returns the encoded value, one line of ASCII.

    Raises:
        TypeError: The value contains something other than plain data.
        RecursionError: The value is nested too deeply, or contains itself.
    """
    return json.dumps(_tagged(value))


def decode(text: str) -> object:
    """Returns the value of a line.

    Raises:
        ValueError: The line is invalid.
        TypeError: A key or a set's member is not hashable.
        RecursionError: The value is nested too deeply.
    """
    return _plain(json.loads(text))


def decode_json(text: str) -> object:
    """Returns the value of a line as JSON would represent it: tuples become lists, and keys become text.

    The function is for untrusted lines that are read outside a sandbox. It builds no sets, and no dictionaries with
    keys other than text, because an attacker can choose numbers with equal hashes: building a set from a few megabytes
    of such numbers would take hours.

    Raises:
        ValueError: The line is invalid, or has a value that JSON can't represent.
        TypeError: A key can't become text.
        RecursionError: The value is nested too deeply.
    """
    return _as_json(json.loads(text))


def _tagged(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bytes):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, dict):  # including defaultdict and Counter
        return {"dict": [[_tagged(key), _tagged(each)] for key, each in value.items()]}
    if isinstance(value, list):
        return [_tagged(each) for each in value]
    if isinstance(value, tuple | set | frozenset):
        name = next(name for name in _SEQUENCES if any(kind.__name__ == name for kind in type(value).__mro__))
        return {name: [_tagged(each) for each in value]}
    for kind in (bool, int, float, str):  # e.g. an enum member of such a type
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a value of type {type(value).__name__} can't leave its process: only plain data can")


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError("a tagged value has one tag")
    tag, content = next(iter(value.items()))
    if tag == "bytes" and isinstance(content, str):
        return bytes.fromhex(content)
    if tag == "dict" and isinstance(content, list):
        return {_plain(key): _plain(each) for key, each in content}
    if tag in _SEQUENCES and isinstance(content, list):
        return _SEQUENCES[tag](_plain(each) for each in content)
    raise ValueError(f"no value has the tag {str(tag)[:20]!r}")


def _as_json(value: object) -> object:
    match value:
        case list():
            return [_as_json(each) for each in value]
        case {"tuple": list(content), **rest} if not rest:
            return [_as_json(each) for each in content]
        case {"dict": list(content), **rest} if not rest:
            return {_as_key(key): _as_json(each) for key, each in content}
        case dict():
            raise ValueError(f"JSON has no value of the kind {next(iter(value), '')[:20]!r}")
    return value


def _as_key(key: object) -> str:
    return key if isinstance(key, str) else json.dumps(_as_json(key))
