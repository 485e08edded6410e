"""Job that tests whether two mathematical answers are equal, by the math-verify library.

On some texts written by models, the library's parser and simplifier need very much time or memory. The library's own
time limits only work with signals of the main thread. In this job the resource limits of the job's process end such
comparisons.
"""

from __future__ import annotations

import logging

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]

from .program import OUT_OF_MEMORY

_VERDICT = 3
_LATEX = LatexExtractionConfig(boxed_match_priority=0)
_CONFIGS = (_LATEX, ExprExtractionConfig())


def run(payload: dict[str, str]) -> int:
    """Compares `expected` and `given`; writes `equal` or `different` to descriptor 3."""
    logging.disable(logging.CRITICAL)
    try:
        equal = _equal(payload["expected"], payload["given"])
    except MemoryError:
        return OUT_OF_MEMORY
    except Exception:  # noqa: BLE001 - texts on which the library raises are wrong answers
        equal = False
    with open(_VERDICT, "w", encoding="utf-8") as verdict:
        verdict.write("equal" if equal else "different")
    return 0


def _equal(expected: str, given: str) -> bool:
    wanted = parse(f"\\boxed{{{expected}}}", _CONFIGS, parsing_timeout=None)
    found = parse(f"\\boxed{{{given}}}", _CONFIGS, parsing_timeout=None)
    return bool(verify(wanted, found, timeout_seconds=None))


def _warm_up() -> None:
    """Fills the caches of parser and simplifier, which forks inherit, so that a job takes a tenth of the time."""
    samples = (
        ("\\frac{1}{2}", "0.5"), ("x^2+2x+1", "(x+1)^2"), ("\\{1,2\\}", "\\{2,1\\}"), ("(1,2)", "(1, 2)"),
        ("x=\\sqrt{3}", "\\sqrt{3}"), ("[0,1)", "[0,1)"), ("2\\pi", "\\pi\\cdot 2"), ("10\\%", "0.1"),
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
        ("x<3", "x < 3"), ("\\sin x", "\\sin(x)"), ("a_1+b", "b+a_1"), ("\\text{east}", "\\text{west}"),
        ("1,000", "1000"),
    )  # fmt: skip
    for expected, given in samples:
        _equal(expected, given)


_warm_up()
