"""One value in the box: honest notations are compared, and two values are wrong."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollouts.environments import load_environment
from rollouts.environments.interface import Prompt
from rollouts.environments.one_value import ExpressionPair, comparable
from rollouts.sandbox import Sandboxes
from tests.rollouts.environments.conftest import WriteRows, row

pytest.importorskip("math_verify")

TWO_VALUES = [
    "11=12", "12=11", "x=11=12", "11+1=12", "x+11=12", "=12", r"12\approx 11", r"11\approx 12", r"\approx 12", "12≈11",
    r"11\to 12", r"11\mapsto 12", r"11\implies 12", r"11\iff 12", r"11\sim 12", r"11\cong 12", r"11\propto 12",
    r"11\in 12", r"11\subset 12", r"11\mid 12", r"11\dots 12", r"11\bmod 12", r"11\cup 12", r"11\cap 12",
    r"11\setminus 12", r"11\lor 12", r"11\wedge 12", r"11\coloneqq 12", "11:=12", "11==12", r"11\doteq 12",
    r"11\equiv 12", r"11\not=12", r"11\ne 12", "11<12", "12>11", r"11\parallel 12", r"11\circ 12", r"11\star 12",
    "11→12", "11 ∈ 12", r"12\text{ (not 11)}", r"12\mbox{11}", r"12\mathrm{11}", r"12_{11}", "12_11",
    "12, 11", r"11 \text{ or } 12", r"12\%", "12%", r"12\,\%", r"\text{12 or 11}", r"12 \text{%}", r"12\% = 11",
    r"12\\11", "12 & 11", r"x=12, y=11", r"12 \pm 1", r"12\boldsymbol{11}", r"12\phantom{11}", r"12\tag{11}",
]  # fmt: skip

ONE_VALUE = [
    ("12", "12"), ("12", "12.0"), ("12", "$12$"), ("12", r"\(12\)"), ("12", r"\frac{24}{2}"), ("12", r"\dfrac{24}{2}"),
    ("12", "24/2"), ("12", r"6\cdot 2"), ("12", r"\sqrt{144}"), ("12", "10+2"), ("12", "x=12"), ("12", "x = 12"),
    ("12", "f(2)=12"), ("12", "x_1=12"), ("12", "a+b=12"), ("12", "x^2+y^2=12"), ("12", r"\theta=12"),
    ("12", r"12\text{ cm}"), ("12", "12 cm"), ("12", r"12\ \text{apples}"), ("12", r"12\,\mathrm{m/s}"),
    ("12", r"12^\circ"), ("12", r"12^{\circ}"), ("12", r"\$12"), ("12", r"\text{12}"), ("12", r"\left(12\right)"),
    ("1000", "1,000"), ("0.12", r"12\%"), ("0.12", "12%"), (r"\frac{1}{2}", r"50\%"), (r"12\%", r"12\%"),
    (r"12\%", "12"), (r"12\%", "0.12"), ("1,2", "2,1"), ("1,2", "x=1,x=2"), ("1,2", r"x=1\text{ or }x=2"),
    (r"\{1,2\}", r"\{2,1\}"), ("x<3", "x<3"), (r"x\le 3", r"x\le 3"), ("y=2x+1", "y=2x+1"), ("y=2x+1", "2x+1"),
    ("x^2+y^2=1", "x^2+y^2=1"), (r"[0,1)\cup(2,3]", r"(2,3]\cup[0,1)"), (r"\text{east}", "east"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"), (r"\frac{\pi}{4}", r"\arctan(1)"),
    ("3+4i", "4i+3"), ("x>2", "2<x"), (r"x\ge 2", "x>=2"), (r"1 \pm \sqrt{2}", r"1\pm\sqrt{2}"), ("101_2", "101_2"),
]  # fmt: skip


@pytest.fixture(scope="module")
def sandboxes() -> Sandboxes:
    return Sandboxes()


def score(expected: str, given: str, write_rows: WriteRows, sandboxes: Sandboxes) -> float:
    environment = load_environment("math", options=write_rows([row({"ground_truth": "2"})]), sandboxes=sandboxes)
    prompt = Prompt(index=0, text="?", data={"answer": expected})
    return environment.score(prompt, f"\\boxed{{{given}}}", finished=True).task


@pytest.mark.parametrize("given", TWO_VALUES)
def test_two_values_in_a_box_are_wrong(given: str, write_rows: WriteRows, sandboxes: Sandboxes) -> None:
    assert score("12", given, write_rows, sandboxes) == 0.0


@pytest.mark.parametrize(("expected", "given"), ONE_VALUE)
def test_one_value_is_accepted_in_any_notation(
    expected: str, given: str, write_rows: WriteRows, sandboxes: Sandboxes
) -> None:
    assert score(expected, given, write_rows, sandboxes) == 1.0


@pytest.mark.parametrize(
    ("expected", "given"),
    [(r"12\%", r"1200\%"), (r"12\%", r"0.12\%"), ("12", r"1200\%=x"), ("x=3", "x=3=4"), ("101_2", "101_2=5")],
)
def test_percentages_and_equations_do_not_allow_a_second_value(
    expected: str, given: str, write_rows: WriteRows, sandboxes: Sandboxes
) -> None:
    assert score(expected, given, write_rows, sandboxes) == 0.0


TEXTS = st.text(alphabet=st.one_of(st.sampled_from("12ax=%\\_^{}()<>,;$ ≈≤\n"), st.characters()), max_size=60)


@given(given=TEXTS)
@example(given="=" * 999)
@example(given="(" * 999)
@example(given="\\text{" * 99)
@example(given="\\%\\%")
def test_any_text_is_compared_unchanged_or_as_a_percentage_or_not_at_all(given: str) -> None:
    pair = comparable(given, expected="12")
    if pair is None:
        return
    assert pair.expected == "12"
    if "%" not in given:
        assert pair.given == given
    else:
        number = re.fullmatch(r"\\frac\{(.*)\}\{100\}", pair.given, re.DOTALL)
        assert number is not None
        assert "%" not in number[1]
        assert given.strip(" $").startswith(number[1])


@given(expected=TEXTS)
def test_a_number_can_be_compared_with_any_expected_answer(expected: str) -> None:
    assert comparable("12", expected=expected) == ExpressionPair(expected=expected, given="12")


SIGNS = ["=", "<", ">", "≈", "→", r"\approx ", r"\to ", r"\implies ", r"\in ", r"\not= ", " & ", ":=", "_", r"\\ "]


@given(first=st.integers(0, 10**9), second=st.integers(0, 10**9), sign=st.sampled_from(SIGNS))
def test_two_numbers_joined_by_an_operator_are_not_one_value(first: int, second: int, sign: str) -> None:
    for expected in (str(first), str(second)):
        assert comparable(f"{first}{sign}{second}", expected=expected) is None
