"""Plain data between processes that do not trust each other."""

from __future__ import annotations

import json
import time
from collections import Counter, OrderedDict, defaultdict
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.sandbox.inside.values import decode, decode_json, encode


class Point(NamedTuple):
    x: int
    y: int


class Colour(IntEnum):
    RED = 1


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.sets(KEYS)
        | st.frozensets(KEYS)
        | st.dictionaries(KEYS, inner)
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_values_are_returned_equal_and_of_the_same_type(value: object) -> None:
    returned = decode(encode(value))
    assert returned == value
    assert type(returned) is type(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, {1: [2]}), {1: [2]}),
        (Point(1, 2), (1, 2)),
        (Colour.RED, 1),
        (type("Liar", (int,), {"__eq__": lambda *_: True})(7), 7),
    ],
)
def test_instances_of_subclasses_become_plain_values(value: object, plain: object) -> None:
    returned = decode(encode(value))
    assert (type(returned), returned) == (type(plain), plain)


@pytest.mark.parametrize("value", [object(), print, int, iter([]), range(3), [[object()]]])
def test_values_of_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="only plain data can"):
        encode(value)


def test_a_recursive_value_is_refused() -> None:
    ring: list[object] = []
    ring.append(ring)
    with pytest.raises(RecursionError):
        encode(ring)


@given(
    st.text() | st.recursive(st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)).map(str)
)
def test_any_text_is_a_valid_encoding_or_is_refused(text: str) -> None:
    for read in (decode, decode_json):
        with suppress(ValueError, TypeError, RecursionError):
            read(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.lists(inner).map(tuple),
    )
)
def test_a_value_can_be_decoded_as_json_would_represent_it(value: object) -> None:
    assert decode_json(encode(value)) == json.loads(json.dumps(value))


@pytest.mark.parametrize("value", [b"x", {1}, frozenset(), [b"x"], {b"x": 1}, {frozenset(): 1}])
def test_values_that_json_lacks_are_refused_in_json_mode(value: object) -> None:
    with pytest.raises(ValueError, match="JSON has no value"):
        decode_json(encode(value))


def test_numbers_with_equal_hashes_do_not_slow_the_decoder() -> None:
    def seconds(factor: int) -> float:
        text = '{"dict": [' + ",".join(f"[{factor * each},1]" for each in range(1, 8000)) + "]}"
        began = time.process_time()
        assert len(decode_json(text)) == 7999  # type: ignore[arg-type]  # a dictionary
        return time.process_time() - began

    assert seconds(2**61 - 1) < 10 * seconds(2**61 - 2) + 0.1


@pytest.mark.parametrize(
    "text",
    [
        '{"tuple": 1}',
        '{"set": [[1]]}',
        '{"what": []}',
        '{"dict": [[1]]}',
        '{"bytes": "x"}',
        "{}",
        '{"a":1,"b":2}',
        "[" * 9999,
    ],
)
def test_an_invalid_encoding_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError, RecursionError)):
        decode(text)
