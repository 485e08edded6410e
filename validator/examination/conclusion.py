"""Derives a verdict from check results: outcome, reason and text (decision 27). No I/O.

A failed exact check is forgery. A failed statistical check is forgery only if two prefills with different arithmetic
both find the file beyond widened limits (the honest limits times the margin). A single log-probability or proof beyond
the widened limits is not enough (decision 58). If a statistical check fails without being forgery, the file is
rejected: the work is not paid, but the node loses no stake.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from protocol.verdicts import Outcome, ReasonCode
from rollouts.checks import CheckFinding, CheckOutcome, CheckResult, Fails
from rollouts.checks.scoring import is_few
from rollouts.files.samples import SlotHeader
from rollouts.recipe import Recipe

MANY_SLOW = 0.25
"""Share of scored rows that may exceed their own time limit in an ordinary acceptance.

Above this share, the verdict's reason is `PASSED_UNDECIDED`; repeated verdicts of that kind lower the node's delivery
rate. The files of honest nodes stay below this share, although models write endless loops in some answers.
"""

PROGRAMS = frozenset({"code", "python"})
"""Environments that run the model's programs.

The result of a program that reads the clock is random, so a file with only few differing rows is not judged forged.
The guards of `python` make outputs repeatable, but not against a program that is written to bypass them. Many differing
rows are judged forged nevertheless: honest answers contain few such programs, and if any number of rows were excused,
a node could invent all replies of the tool without losing stake.
"""

UNCONFIRMED = {
    "computation": ReasonCode.COMPUTATION_UNCONFIRMED,
    "sampling": ReasonCode.SAMPLING_UNCONFIRMED,
    "logprobs": ReasonCode.LOG_PROBABILITIES_UNCONFIRMED,
}
"""Reason code of a rejection by statistical check, if the check failed but the failure does not prove forgery."""

_UNPAID = "; the work is not paid, and no stake is lost"
_COPY = "; all of its outputs equal those of another submission (IDENTITY_COPY)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationVerdict:
    """Outcome, reason and text of a conclusion."""

    outcome: Outcome
    reason: ReasonCode
    words: str
    """Reason of the outcome in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """Check results of one prefill, of the drawn rows or of all rows.

    Args:
        results: Results of checks 8 to 10 with the normal limits.
        beyond: Names of the checks that also fail with limits widened by the margin. A check that fails only because
            of a single log-probability or proof is included only if the replay check also fails with the wider limits.
    """

    results: tuple[CheckResult, ...]
    beyond: frozenset[str]

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """Checks that failed with the normal limits."""
        return tuple(one for one in self.results if one.state is CheckOutcome.FAILED)

    @property
    def malformed(self) -> CheckResult | None:
        """First failed check with an exact failure, such as a malformed proof; None if there is none.

        An honest node produces no such file, because an exact failure does not depend on arithmetic.
        """
        return next((one for one in self.failed if one.fails is Fails.EXACT), None)


def forged(result: CheckResult, *, copy: bool = False) -> ExaminationVerdict:
    """Returns the verdict `FORGED` for a failed exact check.

    Args:
        result: The failed check.
        copy: True if another submission has the same outputs.
    """
    return ExaminationVerdict(
        outcome=Outcome.FORGED,
        reason=result.findings[0].reason,
        words=f"{result.check}: {_first(result)}{_COPY if copy else ''}",
    )


def scores_differ(
    failed: Sequence[CheckResult], *, rows: int, environments: Collection[str], copy: bool = False
) -> ExaminationVerdict:
    """Returns the verdict for a file whose rewards or dialogues differ from this validator's scores and replays.

    The verdict is `FORGED`, with two exceptions that give `REJECTED`. First, all differing rows claim too little or end
    too early, and have limits of time or memory: on a slow machine, honest scoring gives such rows. Second, only few
    rows differ in another way, and all of them are in environments that run programs.

    Args:
        failed: The failed checks: reward, dialogue or both.
        rows: Number of rows of the file.
        environments: Environments of the differing rows, except rows of the first exception.
        copy: True if another submission has the same outputs.
    """
    others = [_others(result) for result in failed]
    first = next((result for result, number in zip(failed, others, strict=True) if number), failed[0])
    verdict = forged(first, copy=copy)
    if not any(others):
        why = "the node's machine may have been too slow for these answers, so the file is not judged forged"
    elif PROGRAMS.issuperset(environments) and is_few(sum(others), rows=rows):
        why = "so few rows may differ by chance, so the file is not judged forged"
    else:
        return verdict
    return ExaminationVerdict(outcome=Outcome.REJECTED, reason=verdict.reason, words=f"{verdict.words}; {why}")


def _others(result: CheckResult) -> int:
    """Returns the number of findings that a limit of the node's machine can't have caused."""
    limited = (result.figures.get(name) for name in ("claimed_less", "ends_at_limit"))
    return result.found - sum(number for number in limited if isinstance(number, int))


def not_accepted(file: SlotHeader, recipe: Recipe, *, here: str) -> ExaminationVerdict | None:
    """Returns a rejection if the node used an engine, data type or environment that the recipe does not allow.

    Args:
        file: Header of the file, with the node's choices.
        recipe: Recipe of the leased version.
        here: Version of the environment on this machine; if the environment has builds, `+` and the build follow.

    Returns:
        A rejection, or None if the recipe allows the node's choices. The result is also None if the recipe names no
        build, but the file and this machine both name one: then this validator can't know which builds are allowed.
    """
    if not recipe.takes(file.arithmetic):
        return ExaminationVerdict(
            outcome=Outcome.REJECTED,
            reason=ReasonCode.BOUNDS_ARITHMETIC,
            words=f"generated by {file.arithmetic}, but the recipe accepts only {', '.join(recipe.taken)}{_UNPAID}",
        )
    named = recipe.environment.version
    if file.environment_version == here or not _named_builds(named, here, file.environment_version):
        return None
    return ExaminationVerdict(
        outcome=Outcome.REJECTED,
        reason=ReasonCode.BOUNDS_ENVIRONMENT,
        words=f"scored by {file.environment} in version {file.environment_version}, but the recipe accepts only "
        f"{named if '+' in named else here}{_UNPAID}",
    )


def _named_builds(named: str, here: str, found: str) -> bool:
    """Returns True if the recipe certainly does not allow an environment version that differs from this machine's.

    This is uncertain if the recipe names no build, but the file and this machine both name one (`VERSION+BUILD`).
    """
    return "+" in named or "+" not in here or "+" not in found


def old(result: CheckResult) -> ExaminationVerdict:
    """Returns the verdict `REJECTED` for a file of a former format, which outdated worker images still write."""
    return ExaminationVerdict(
        outcome=Outcome.REJECTED,
        reason=ReasonCode.FORMAT_OLD,
        words=f"{result.check}: {_first(result)}{_UNPAID}",
    )


def accepted(*, rows: int, audited: int, slow: int = 0, unscored: int = 0, copy: bool) -> ExaminationVerdict:
    """Returns the verdict `ACCEPTED` for a file that passed every check.

    Args:
        rows: Number of rows.
        audited: Number of recomputed rows.
        slow: Number of rows that exceeded their own time limit in scoring.
        unscored: Number of rows that were not scored because the time for all rows ran out. Unscored rows are not held
            against the file, because this machine may be slow or busy.
        copy: True if another submission has the same outputs.
    """
    words = f"all checks passed; {audited} of {rows} rows were computed again"
    if slow:
        words += f"; {slow} took too long to score and have no reward"
    if unscored:
        words += f"; {unscored} were not scored within the time for all rows and have no reward"
    if copy:
        words += "; its outputs equal those of another submission, but its own seed draws them, too"
    reason = ReasonCode.PASSED_UNDECIDED if slow > MANY_SLOW * (rows - unscored) else ReasonCode.PASSED
    return ExaminationVerdict(outcome=Outcome.ACCEPTED, reason=reason, words=words)


def statistical(first: Prefilled, second: Prefilled, *, copy: bool) -> ExaminationVerdict:
    """Returns the verdict for a file that failed a check in the first prefill, from the results of both prefills.

    Args:
        first: Results of the first prefill, with a failed check.
        second: Results of the second prefill, which recomputed the same rows with other arithmetic.
        copy: True if another submission has the same outputs.
    """
    tail = _COPY if copy else ""
    for result in first.failed:
        if result.check in first.beyond & second.beyond:
            return ExaminationVerdict(
                outcome=Outcome.FORGED,
                reason=result.findings[0].reason,
                words=f"{result.check}: {_first(result)}; another prefill confirms it{tail}",
            )
    result = first.failed[0]
    agrees = any(one.check == result.check for one in second.failed)
    why = "but not beyond the limits for forgery" if agrees else "but another prefill does not confirm it"
    words = f"{result.check}: {_first(result)}; {why}, so the work is not paid, and no stake is lost{tail}"
    return ExaminationVerdict(outcome=Outcome.REJECTED, reason=UNCONFIRMED[result.check], words=words)


def _first(result: CheckResult) -> str:
    more = f" (and {result.found - 1} more)" if result.found > 1 else ""
    return f"{_place(result.findings)}{result.findings[0].what}{more}"


def _place(findings: Sequence[CheckFinding]) -> str:
    one = findings[0]
    parts = [f"row {one.row}" if one.row is not None else "", f"token {one.position}" if one.position else ""]
    place = ", ".join(part for part in parts if part)
    return f"{place}: " if place else ""
