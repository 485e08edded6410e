"""Check 4: prompts, target lengths and groups are exactly those that the slot's seed draws, in order.

In the file of a served slot, prompts and answers are those of the gateway's signed list of requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from protocol.verdicts import ReasonCode
from protocol.wire.served import RequestKind, answer_digest
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckFinding, CheckResult, Cost, Fails, concluded, first_difference
from rollouts.checks.served_rows import ServedRows
from rollouts.errors import BadVersionFolder
from rollouts.plan import PlannedGroup

RATIONALE = (
    "A node that could choose its prompts would pick easy ones, and a node that could omit samples would keep the good "
    "ones. The seed leaves no choice, and its draws are exact to the bit, so any difference is deliberate."
)

_MOST_MISSING = 4
"""Largest ratio of the samples that a file's groups need to the samples in the file. If a file's ratio is larger, the
check fails at once and does not plan the slot again, because planning costs time.
"""


def judge(case: CheckInput) -> CheckResult:
    """Draws the slot again and compares every row with it.

    If the seed is unknown, only the properties are checked that hold for every seed.
    """
    if case.version.recipe.gateway is not None:
        return judge_served(case)
    seed, facts = case.facts.seed, case.facts
    wanted, rows = facts.groups * case.version.recipe.group_size, len(case.file.samples)
    figures = {"groups": facts.groups, "samples": rows}
    if facts.from_file and wanted > _MOST_MISSING * rows:
        what = f"the file has {rows} samples, but its {facts.groups} groups need {wanted}"
        finding = CheckFinding(reason=ReasonCode.SEED_GROUPS, what=what)
        return concluded(CHECK.name, [finding], fails=CHECK.fails, figures=figures)
    findings = list(_numbers(case, wanted))
    if case.file.served is not None:
        findings.append(CheckFinding(reason=ReasonCode.SEED_PROMPTS, what="the version is not served by a gateway"))
    if seed is not None:
        plan = case.version.planner.plan(seed, groups=facts.groups)
        findings += _rows(case, {sample: group for group in plan.groups for sample in group.samples})
        return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures)
    findings += _rows_by_themselves(case)
    note = "the slot's seed is not known: the choice of prompts was not checked"
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, note=note)


def judge_served(case: CheckInput) -> CheckResult:
    """Compares the rows of a served slot with the gateway's list of requests."""
    served, facts = case.served, case.facts
    if served is None:
        raise TypeError("the input of a served file needs the list of requests; see `read_served`")
    figures = {"groups": facts.groups, "samples": len(case.file.samples), "requests": len(served.requests)}
    findings = [CheckFinding(reason=ReasonCode.SEED_PROMPTS, what=what) for what in served.faults]
    if not findings:
        findings += _served_numbers(case, served)
    if not findings:
        findings += _served_rows(case, served)
    note = "" if served.has_known_signer else "no lease was given, so the list's signature was not checked"
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, note=note)


def _served_numbers(case: CheckInput, served: ServedRows) -> Iterator[CheckFinding]:
    rows = len(case.file.samples)
    if rows != len(served.rows):
        what = f"the file has {rows} rows, but the listed requests have {len(served.rows)} answers"
        yield CheckFinding(reason=ReasonCode.SEED_GROUPS, what=what)
    elif rows > case.facts.groups:
        what = f"the file has {rows} answers, but the lease allows {case.facts.groups}"
        yield CheckFinding(reason=ReasonCode.SEED_GROUPS, what=what)


def _served_rows(case: CheckInput, served: ServedRows) -> Iterator[CheckFinding]:
    texts: dict[int, list[tuple[str, list[int]]]] = defaultdict(list)
    for row, (sample, wanted) in enumerate(zip(case.file.samples, served.rows, strict=True)):
        if (sample.sample, sample.group, sample.prompt_index) != (row, row, wanted.request):
            yield case.finding(
                ReasonCode.SEED_GROUPS,
                f"row {row} must have sample {row}, group {row} and prompt {wanted.request}, but has {sample.sample}, "
                f"{sample.group} and {sample.prompt_index}",
                row=row,
            )
        if sample.target_length is not None:
            yield case.finding(ReasonCode.SEED_TARGETS, "a served row has no target length", row=row)
        if (at := first_difference(sample.prompt_tokens, wanted.prompt_tokens)) is not None:
            yield case.finding(
                ReasonCode.SEED_PROMPTS,
                f"the prompt's tokens differ from those of request {wanted.request} from token {at} on",
                row=row,
            )
        tokens = sample.output_tokens.tolist()
        has_text = served.requests[wanted.request].kind is not RequestKind.GENERATE
        text = case.version.tokenizer.streamed_text(tokens) if has_text and _fits_vocabulary(case, tokens) else ""
        texts[wanted.request].append((text, tokens))
    for place, request in enumerate(served.requests):
        if answer_digest(texts[place]) != request.answer:
            what = f"the client got another answer to request {place} than the file has"
            yield CheckFinding(reason=ReasonCode.SEED_PROMPTS, what=what)


def _fits_vocabulary(case: CheckInput, tokens: Sequence[int]) -> bool:
    return all(0 <= token < case.version.model.vocabulary for token in tokens)


def _numbers(case: CheckInput, count: int) -> Iterator[CheckFinding]:
    """Finds samples that are missing, repeated or out of order."""
    numbers = [sample.sample for sample in case.file.samples]
    size = case.version.recipe.group_size
    missing = defaultdict(list)
    for number in sorted(set(range(count)) - set(numbers)):
        missing[number // size].append(number)
    for group, lacking in missing.items():
        yield CheckFinding(
            reason=ReasonCode.SEED_GROUPS,
            what=f"group {group} lacks {_listed(lacking)} of its {size} samples",
            group=group,
        )
    seen: set[int] = set()
    for row, number in enumerate(numbers):
        if number >= count:
            yield case.finding(ReasonCode.SEED_GROUPS, f"sample {number} is past the slot's {count} samples", row=row)
        elif number in seen:
            yield case.finding(ReasonCode.SEED_GROUPS, f"sample {number} is repeated here", row=row)
        seen.add(number)
    if not missing and len(numbers) == count:
        for row, number in enumerate(numbers):
            if number != row:
                yield case.finding(ReasonCode.SEED_GROUPS, f"rows are out of order: sample {row} must be here", row=row)
                return


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    return f"sample{'s' * (len(numbers) > 1)} {shown}{' …' * (len(numbers) > 8)}"


def _rows(case: CheckInput, planned: dict[int, PlannedGroup]) -> Iterator[CheckFinding]:
    for row, sample in enumerate(case.file.samples):
        group = planned.get(sample.sample)
        if group is None:
            continue
        if sample.group != group.group:
            yield case.finding(
                ReasonCode.SEED_GROUPS,
                f"sample {sample.sample} belongs to group {group.group}, but the file records group {sample.group}",
                row=row,
            )
        if sample.prompt_index != group.prompt.index:
            yield case.finding(
                ReasonCode.SEED_PROMPTS,
                f"the row has prompt {sample.prompt_index}, but the seed draws prompt {group.prompt.index}",
                row=row,
            )
        elif (at := first_difference(sample.prompt_tokens, group.tokens)) is not None:
            yield case.finding(
                ReasonCode.SEED_PROMPTS,
                f"the prompt's tokens differ from those of prompt {group.prompt.index} from token {at} on",
                row=row,
            )
        if sample.target_length != group.prompt.target_length:
            yield case.finding(
                ReasonCode.SEED_TARGETS,
                f"the row has target length {sample.target_length}, but the seed draws {group.prompt.target_length}",
                row=row,
            )


def _rows_by_themselves(case: CheckInput) -> Iterator[CheckFinding]:
    """Checks properties that hold for every seed.

    Each row has the group of its sample number. The rows of a group have one prompt and one target length, which the
    version and the recipe have, and the prompt is encoded correctly.
    """
    size = case.version.recipe.group_size
    rule = case.version.recipe.length_reward
    targets = {None} if rule is None else set(rule.targets)
    first: dict[int, tuple[int, int | None]] = {}
    for row, sample in enumerate(case.file.samples):
        if sample.group != sample.sample // size:
            yield case.finding(
                ReasonCode.SEED_GROUPS,
                f"sample {sample.sample} belongs to group {sample.sample // size}, but the file records group "
                f"{sample.group}",
                row=row,
            )
            continue
        asked = (sample.prompt_index, sample.target_length)
        if sample.target_length not in targets:
            yield case.finding(
                ReasonCode.SEED_TARGETS, f"the recipe has no target length of {sample.target_length}", row=row
            )
        elif asked != first.setdefault(sample.group, asked):
            yield case.finding(
                ReasonCode.SEED_PROMPTS,
                f"the row has prompt {asked[0]} with target {asked[1]}, but its group began with prompt "
                f"{first[sample.group][0]} and target {first[sample.group][1]}",
                row=row,
            )
        else:
            yield from _as_encoded(case, row)


def _as_encoded(case: CheckInput, row: int) -> Iterator[CheckFinding]:
    sample = case.file.samples[row]
    try:
        _, tokens = case.version.planner.ask(sample.prompt_index, sample.target_length)
    except BadVersionFolder as error:
        yield case.finding(ReasonCode.SEED_PROMPTS, error.detail, row=row)
        return
    if (at := first_difference(sample.prompt_tokens, tokens)) is not None:
        yield case.finding(
            ReasonCode.SEED_PROMPTS,
            f"the prompt's tokens differ from those of prompt {sample.prompt_index} from token {at} on",
            row=row,
        )


CHECK = Check(number=4, name="seeds", cost=Cost.PLAN, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
