"""Reads the answer out of a completion, and refuses answers that a scorer must not see.

Nine scorers of reasoning-gym run the answer as Python code, so an answer could write its own score. Answers to these
datasets must consist of the few tokens that a right answer can have. The token lists allow neither functions that take
text, nor a dot after a name, nor names such as `__class__`. So Python can run only arithmetic or a literal. The lists
for integration omit the function `Integral` on purpose: an answer that only writes the integral down would have the
right derivative.

Three more datasets have a token list for other reasons. The scorers of two of them give the answer `nan` the full
score, or compute with huge exponents. The scorer of `number_sorting` accepts a list of `NaN` as sorted and right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

_LEAST_LONGEST = 10_000
"""Usual maximum length of an answer, in characters. Prompts with a long right answer allow more, and some datasets
allow less (`_GRAMMARS`)."""

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class AnswerPlace(StrEnum):
    """Part of a completion that is the answer."""

    TAGS = "tags"
    """The content of the last `<answer>…</answer>`."""
    LAST_LINE = "last-line"
    """The last line that is not blank."""
    WHOLE = "whole"
    """The whole completion."""

    @property
    def instruction(self) -> str:
        """Sentence that tells a model where its answer has to be; empty for the whole completion."""
        match self:
            case AnswerPlace.TAGS:
                return "Give your final answer between <answer> and </answer>."
            case AnswerPlace.LAST_LINE:
                return "Write your final answer alone on the last line."
            case AnswerPlace.WHOLE:
                return ""

    def demonstrate(self, answer: str) -> str:
        """Returns a completion with this answer."""
        return f"<answer>{answer}</answer>" if self is AnswerPlace.TAGS else answer

    def extract(self, completion: str) -> str | None:
        """Returns the answer without surrounding white space; None if there is none.

        An empty answer, which is right for a few prompts, can only be given in tags.
        """
        match self:
            case AnswerPlace.TAGS:
                start = completion.rfind("<answer>", 0, max(completion.rfind("</answer>"), 0))
                found = _TAGGED.match(completion, start) if start >= 0 else None
                return found[1].strip() if found else None
            case AnswerPlace.LAST_LINE:
                return completion.rstrip().rpartition("\n")[2].strip() or None
            case AnswerPlace.WHOLE:
                return completion.strip() or None


@dataclass(frozen=True, slots=True)
class _Grammar:
    """Pattern that an answer has to match, and the dataset's own maximum length in characters, or None."""

    tokens: re.Pattern[str]
    longest: int | None

    def accepts(self, answer: str) -> bool:
        return (self.longest is None or len(answer) <= self.longest) and self.tokens.fullmatch(answer) is not None


def _grammar(token: str, longest: int | None = None) -> _Grammar:
    return _Grammar(re.compile(f"(?:{token})*+", re.ASCII), longest)


_MATRIX = _grammar(r"[0-9,\[\]\s-]")
_ARITHMETIC = _grammar(r"[0-9]{1,12}(?![0-9])|\*(?!\*)|[+/()\s-]", 400)
_NUMBER = r"[0-9]{1,30}(?:\.[0-9]{1,30})?(?![0-9.A-Za-z])"
_FUNCTION = r"(?:sqrt|exp|log|ln|a?sin|a?cos|a?tan|sinh|cosh|tanh|sec|csc|cot|pi|[A-Za-z])(?![A-Za-z0-9])"
_EXPRESSION = _grammar(rf"{_NUMBER}|{_FUNCTION}|[+*/()\s-]", 1000)

_GRAMMARS: Mapping[str, _Grammar] = {
    "binary_matrix": _MATRIX,
    "coin_flip": _grammar(r"[0-9.,/\s]|e-[0-9]{1,2}(?![0-9])", 40),
    "complex_arithmetic": _grammar(r"[0-9.+ijIJ()\s-]", 100),
    "countdown": _ARITHMETIC,
    "intermediate_integration": _EXPRESSION,
    "n_queens": _grammar(r"[Q_,\[\]'\"\s]"),
    "polynomial_multiplication": _EXPRESSION,
    "number_sorting": _grammar(r"[0-9.,\[\]'\"\sEe+-]"),
    "puzzle24": _ARITHMETIC,
    "simple_integration": _EXPRESSION,
    "spiral_matrix": _MATRIX,
    "string_insertion": _grammar(r"[A-E,\[\]'\"\s]"),
}
"""Grammar of the answers to each of these datasets."""


def is_admissible(dataset: str, answer: str, *, expected: str | None) -> bool:
    """Returns whether a scorer may see an answer.

    Args:
        dataset: A dataset's name.
        answer: The answer.
        expected: A right answer. The length limit is 10,000 characters, or four times the length of `expected` if that
            is more.
    """
    if len(answer) > max(_LEAST_LONGEST, 4 * len(expected or "")):
        return False
    grammar = _GRAMMARS.get(dataset)
    return grammar is None or grammar.accepts(answer)
