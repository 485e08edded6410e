"""Check 3: the file belongs to the leased slot.

The validator also checks that the file copies no other submission.
"""

from __future__ import annotations

from protocol.verdicts import ReasonCode
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckFinding, CheckResult, Cost, Fails, concluded

RATIONALE = (
    "The node writes these fields itself, from its own lease. A file with another slot, step or version is an old file "
    "that was submitted again, or a file made for another node."
)


def judge(case: CheckInput) -> CheckResult:
    """Compares the header with the lease and the version folder."""
    header, facts = case.file.header, case.facts
    recipe = case.version.recipe.environment
    wanted = (
        ("run", header.run, facts.run),
        ("step", header.step, facts.step),
        ("index", header.index, facts.index),
        ("node", header.node, facts.node),
        ("version digest", header.checkpoint, facts.digest if not facts.from_file else case.version.digest),
        ("environment", header.environment, recipe.name),
        ("environment version", header.environment_version.split("+")[0], recipe.version.split("+")[0]),
    )
    findings = [
        CheckFinding(reason=ReasonCode.IDENTITY_OTHER_WORK, what=f"{name} is {found}, and must be {expected}")
        for name, found, expected in wanted
        if found != expected
    ]
    note = "no lease was given, so the slot's facts are taken from the file's own header" if facts.from_file else ""
    return concluded(CHECK.name, findings, fails=CHECK.fails, note=note)


CHECK = Check(number=3, name="identity", cost=Cost.FILE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
