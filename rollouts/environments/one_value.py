r"""Tests whether a boxed answer is a single value, judging by its notation.

The comparison library evaluates the text that it understands and ignores the rest: it accepts `11=12`, `12\approx 11`
and `11 \to 12` as 12. A policy rewarded for such text learns to give two answers at once. So an answer may only contain
notation of a single expression; relation signs between two expressions are allowed only if the problem's own answer has
such a sign.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPERATIONS = (
    "frac dfrac tfrac cfrac sqrt cdot times div pm mp binom dbinom tbinom sum prod int lim limits ast sin cos tan cot "
    "sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp max min gcd lcm"
)
_NAMES = (
    "pi infty angle degree ell alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda "
    "mu nu xi rho sigma tau upsilon phi varphi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
_BRACKETS = "left right big Big bigg Bigg bigl bigr Bigl Bigr lfloor rfloor lceil rceil lvert rvert vert"
_FONTS = (
    "overline bar vec hat text textbf textit textrm textsf mathrm mathbf mathit mathsf mathbb mathcal operatorname "
    "mbox rm bf displaystyle quad qquad"
)
_IN_ONE_VALUE = frozenset(f"{_OPERATIONS} {_NAMES} {_BRACKETS} {_FONTS}".split())
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_HARMLESS_ESCAPES = frozenset(",;:! {}$%()[]|")
_RING = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})")
_WORDS = re.compile(r"\\(?:text[a-z]*|math[a-z]*|operatorname|mbox)\s*\{([^{}]*)\}")
_SIGNS = frozenset('<>~&#?@"`;:≈≠≤≥→')
_SYMBOLS = frozenset("°π√×·−∞÷’′ ")  # noqa: RUF001 - as models write them
_INEQUALITIES = frozenset({"<", ">", "≤", "≥", "lt", "gt", "le", "ge", "leq", "geq", "leqslant", "geqslant"})
_AFTER_NUMBER = re.compile(r"\d\s*_")
_PARTS = re.compile(r",|;|\\text\s*\{\s*(?:or|and)\s*\}|\b(?:or|and)\b")
_NOT_A_NUMBER = (
    re.compile(r"_(?:\{[^{}]*\}|\\?\w)"),  # an index
    re.compile(r"\^(?:\{\s*\d\s*\}|\d)"),  # an exponent of one digit
    re.compile(r"\([^()=]*\)"),  # the argument of a function
)
_PERCENTAGE = re.compile(r"([^%]*[^%\\\s])\s*(?:\\[,;: ])?\s*\\?%")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionPair:
    """Two expressions to compare."""

    expected: str
    given: str


def comparable(given: str, *, expected: str) -> ExpressionPair | None:
    r"""Returns the expressions to compare for an answer, or None if the answer is not a single value.

    Accepted are numbers, expressions, units and words after a number, and a name before one equals sign (`x = 12`,
    `f(2) = 12`, `a+b = 12`). Lists, sets, intervals, relations and the like are accepted only if the problem's answer
    is of the same kind. A percentage counts as hundredths, unless the problem's answer is also a percentage.

    Args:
        given: Content of the box.
        expected: The problem's answer.
    """
    without_rings = _RING.sub("", given)
    if not _is_known(without_rings, expected) or not _is_equation_of_a_name(given, expected):
        return None
    theirs = _INEQUALITIES if _is_inequality(expected) else frozenset()
    if any(sign in given and sign not in expected for sign in _SIGNS - theirs):
        return None
    if _AFTER_NUMBER.search(given) and "_" not in expected:
        return None
    if _hides_numbers(given, expected):
        return None
    return _without_percent(given, expected)


def _is_known(given: str, expected: str) -> bool:
    """Returns whether every command and symbol can occur in one expression, or occurs in the problem's answer."""
    theirs = {*_COMMAND.findall(expected), *(_INEQUALITIES if _is_inequality(expected) else ())}
    for command in _COMMAND.findall(given):
        if command not in _IN_ONE_VALUE and command not in _HARMLESS_ESCAPES and command not in theirs:
            return False
    return all(each.isascii() or each.isalpha() or each in _SYMBOLS or each in expected for each in given)


def _is_inequality(text: str) -> bool:
    """Returns whether the text is an inequality; an equivalent inequality may have other signs."""
    return not _INEQUALITIES.isdisjoint(_COMMAND.findall(text)) or any(each in _INEQUALITIES for each in text)


def _is_equation_of_a_name(given: str, expected: str) -> bool:
    """Returns whether each equals sign has a name on its left side; a number there would be a second value."""
    if "=" not in given:
        return True
    if "=" in expected:
        return given.count("=") <= expected.count("=")
    for part in _PARTS.split(given):
        left, *rest = part.split("=")
        if len(rest) > 1:
            return False
        if rest and not _is_name(left):
            return False
    return True


def _is_name(left: str) -> bool:
    for pattern in _NOT_A_NUMBER:
        left = pattern.sub("", left)
    return any(each.isalpha() for each in left) and not any(each.isdigit() for each in left)


def _hides_numbers(given: str, expected: str) -> bool:
    r"""Returns whether words contain further numbers, as in `12 \text{ (not 11)}`."""
    words = [each.strip() for each in _WORDS.findall(given)]
    alone = _WORDS.sub("", given).strip(" {}$")
    return any(any(map(str.isdigit, each)) and each not in expected for each in words) and bool(alone or len(words) > 1)


def _without_percent(given: str, expected: str) -> ExpressionPair | None:
    """Returns both expressions without percent signs; None if a percent sign is misplaced.

    If only the given answer is a percentage, it is divided by 100.
    """
    if "%" not in given:
        return ExpressionPair(expected=expected, given=given)
    ending = _PERCENTAGE.fullmatch(given.strip(" $"))
    if ending is None:
        return None
    theirs = _PERCENTAGE.fullmatch(expected.strip(" $"))
    if theirs is not None:
        return ExpressionPair(expected=theirs[1], given=ending[1])
    return ExpressionPair(expected=expected, given=f"\\frac{{{ending[1]}}}{{100}}")
