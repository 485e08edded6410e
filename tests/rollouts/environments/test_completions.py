"""Extracting the answer from a completion."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.environments.completions import LONGEST_COMPLETION, boxed_answer, python_source


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        (r"first \boxed{1}, no: \boxed{2}", "2"),
        (r"<think>\boxed{1}</think> \boxed{2}", "2"),
        (r"<think>\boxed{1}</think> nothing", None),
        (r"\boxed{1</think>", None),
        (r"\boxed{1", None),
        (r"\boxed{{1}", None),
        (r"\boxed 7", None),
        (r"\boxed{}", ""),
        (r"\boxed{" + "9" * 1001 + "}", None),
        ("42", None),
        ("", None),
    ],
)
def test_the_last_box_after_the_reasoning_is_the_answer(completion: str, answer: str | None) -> None:
    assert boxed_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "source"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("text\n```\nx = 1\n```\ntext", "x = 1"),
        ("```py\na\n```\n```python3\nb\n```", "b"),
        ("```python\na\n```\n```bash\nls\n```", "a"),
        ("```python\na\n```\n```python\nb", "a"),
        ("<think>```python\na\n```</think>", None),
        ("```python\nif x:\n    y\n```", "if x:\n    y"),
        ("```c\nint x;\n```", None),
        ("x = 1", None),
        ("", None),
    ],
)
def test_the_last_closed_block_of_python_is_the_program(completion: str, source: str | None) -> None:
    assert python_source(completion) == source


@given(st.text(st.sampled_from("`\n{}\\boxedpython<think/> \ud800\u202e")))
def test_any_text_can_be_searched(completion: str) -> None:
    boxed_answer(completion)
    python_source(completion)


@pytest.mark.parametrize(
    "piece", ["```\n", "```python\n", "\\boxed{", "{", "}", "</think>", "`", "\u202e", "\\boxed{1}", "\n"]
)
def test_the_search_is_linear_in_the_length(piece: str) -> None:
    huge = piece * (LONGEST_COMPLETION // len(piece))
    began = time.process_time()
    boxed_answer(huge)
    python_source(huge)
    assert time.process_time() - began < 20  # a linear search takes one second or two; a quadratic one would take days
    assert boxed_answer(huge + "\\boxed{1}" * 8) is None or len(huge) + 72 <= LONGEST_COMPLETION
