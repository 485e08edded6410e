r"""Environment `math`: problems with one right answer, compared symbolically: `0.5` equals `\frac{1}{2}`.

The answer is the content of the last `\boxed{…}` and must be a single value (`one_value`). The math-verify library
compares it with the problem's answer in a sandbox with limits, because some answers make the library run forever.
"""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version

from rollouts.environments.completions import boxed_answer
from rollouts.environments.datasets import Dataset, DatasetOptions, DatasetProblem
from rollouts.environments.factory import Family, SandboxSource
from rollouts.environments.interface import Environment, Prompt, Score
from rollouts.environments.one_value import comparable
from rollouts.sandbox import Job, JobKind, JobLimits

LIMITS = JobLimits(cpu=timedelta(seconds=5), wall=timedelta(seconds=30), memory_bytes=2 << 30, output_bytes=64 * 1024)
"""Limits of one comparison; comparing real answers takes a few hundredths of a second."""

_LONGEST_EXPECTED = 1000


class Mathematics:
    """The `math` environment; see the module docstring."""

    name = "math"

    def __init__(self, version: str, options: DatasetOptions, sandboxes: SandboxSource) -> None:
        self.version = version
        self._sandboxes = sandboxes
        self._problems = Dataset(options, task_types=("verifiable_math",), usable=_usable)

    def size(self) -> int | None:
        """Returns the number of usable rows in the file."""
        return len(self._problems)

    def prompt(self, index: int) -> Prompt:
        """Returns a row's problem."""
        problem = self._problems[index]
        data = {"problem_id": problem.problem_id, "answer": str(problem.info["ground_truth"])}
        return Prompt(index=index, text=problem.prompt, data=data)

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        """Scores 1 if the boxed answer equals the problem's answer and the model ended by itself."""
        given = boxed_answer(completion)
        parts = {"finished": float(finished), "answered": float(given is not None), "undecided": 0.0}
        if given is None or not finished:
            return Score(task=0.0, parts=parts)
        equal, undecided = self._equal(str(prompt.data["answer"]), given)
        return Score(task=float(equal), parts={**parts, "undecided": float(undecided)})

    def demonstration(self, prompt: Prompt) -> str:
        """Returns the boxed answer alone."""
        return f"\\boxed{{{prompt.data['answer']}}}"

    def _equal(self, expected: str, given: str) -> tuple[bool, bool]:
        if expected.strip() == given:
            return True, False
        pair = comparable(given, expected=expected)
        if pair is None:
            return False, False
        job = Job(module="inside.mathematics", payload={"expected": pair.expected, "given": pair.given}, limits=LIMITS)
        outcome = self._sandboxes().run(JobKind.MATHEMATICS, job)
        return outcome.succeeded and outcome.answer == b"equal", outcome.undecided


def _usable(problem: DatasetProblem) -> bool:
    truth = problem.info.get("ground_truth")
    return isinstance(truth, str | int | float) and 0 < len(str(truth).strip()) <= _LONGEST_EXPECTED


def _library() -> str:
    try:
        return f"mv{version('math-verify')}"
    except PackageNotFoundError:
        return "mv0"


def _build(version: str, options: DatasetOptions, sandboxes: SandboxSource) -> Environment:
    return Mathematics(version, options, sandboxes)


family = Family(
    name="math",
    version="2",
    summary="problems from a file, the boxed answer compared symbolically",
    options=DatasetOptions,
    build=_build,
    depends_on=_library,
)
