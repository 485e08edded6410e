"""Check 5: numbers are within the bounds of version, environment and lease; work units are counted again."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from protocol.verdicts import ReasonCode
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckFinding, CheckResult, Cost, Fails, concluded
from rollouts.environments import Rewards
from rollouts.files.samples import MOST_LOG_PROBABILITY, Sample
from rollouts.models.facts import ModelFacts
from rollouts.turns import given_tokens

RATIONALE = (
    "Lengths, rewards and log-probabilities have bounds that follow from the lease and the version, and the work units "
    "must equal the number of the file's tokens. A working engine stays within all bounds; a file outside them was "
    "forged to be paid."
)

_NOISE_SPAN = 22.88 + 3.14
"""Largest minus smallest noise value (`rollouts.sampling.noise`). A token whose scaled logit is further than this below
the largest scaled logit can never be drawn.
"""
_ROUNDING = 0.2
"""Tolerance for rounding errors of logits, in nats."""


def judge(case: CheckInput) -> CheckResult:
    """Checks every row and counts the work units."""
    findings = list(_units(case))
    least = -(math.log(case.version.model.vocabulary) + _NOISE_SPAN + _ROUNDING)
    for row, sample in enumerate(case.file.samples):
        findings += _lengths(case, row, sample)
        findings += _rewards(case, row, sample)
        findings += _logprobs(case, row, sample, least)
    figures = {"units": case.file.units, "most_units": case.facts.max_units, "submitted_units": case.facts.units}
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures)


def fits_model(case: CheckInput) -> bool:
    """Returns whether all lengths and tokens are in bounds, so that every row can be decoded, scored and recomputed."""
    return not any(True for row, sample in enumerate(case.file.samples) for _ in _lengths(case, row, sample))


def _units(case: CheckInput) -> Iterator[CheckFinding]:
    counted, facts = case.file.units, case.facts
    if facts.units is not None and facts.units != counted:
        yield CheckFinding(
            reason=ReasonCode.BOUNDS_UNITS,
            what=f"{facts.units} work units were submitted, but the file has {counted} tokens",
        )
    if facts.max_units is not None and counted > facts.max_units:
        yield CheckFinding(
            reason=ReasonCode.BOUNDS_UNITS,
            what=f"the file has {counted} work units, but the lease allows {facts.max_units}",
        )


def _lengths(case: CheckInput, row: int, sample: Sample) -> Iterator[CheckFinding]:
    recipe, model = case.version.recipe, case.version.model
    limits = (
        ("prompt", sample.prompt_tokens, recipe.longest_prompt(model.context)),
        (
            "answer",
            sample.output_tokens,
            min(
                case.draws(row).parameters.max_new_tokens,
                model.context - len(sample.prompt_tokens) - given_tokens(sample.turns),
            ),
        ),
    )
    for name, tokens, most in limits:
        if not 1 <= len(tokens) <= most:
            yield case.finding(
                ReasonCode.BOUNDS_LENGTH, f"the {name} has {len(tokens)} tokens; 1 to {most} are allowed", row=row
            )
        elif (at := _beyond(tokens, model)) is not None:
            yield case.finding(
                ReasonCode.BOUNDS_LENGTH,
                f"{name} token {at} is {int(tokens[at])}, outside the vocabulary of {model.vocabulary}",
                row=row,
                position=at if name == "answer" else None,
            )
    yield from _turns(case, row, sample)


def _turns(case: CheckInput, row: int, sample: Sample) -> Iterator[CheckFinding]:
    choice, model = case.version.recipe.dialogue, case.version.model
    if choice is None:
        if sample.turns:
            what = f"the row has {len(sample.turns)} turns, but the recipe has single answers"
            yield case.finding(ReasonCode.BOUNDS_TURNS, what, row=row)
        return
    if not 1 <= len(sample.turns) <= choice.turns:
        what = f"the row has {len(sample.turns)} turns; 1 to {choice.turns} are allowed"
        yield case.finding(ReasonCode.BOUNDS_TURNS, what, row=row)
    for number, turn in enumerate(sample.turns):
        if len(turn.given) > choice.reply_tokens:
            what = f"{len(turn.given)} tokens are given after turn {number}; at most {choice.reply_tokens} are allowed"
            yield case.finding(ReasonCode.BOUNDS_TURNS, what, row=row)
        elif (at := _beyond(turn.given, model)) is not None:
            what = f"given token {at} after turn {number} is {int(turn.given[at])}, outside the vocabulary"
            yield case.finding(ReasonCode.BOUNDS_LENGTH, f"{what} of {model.vocabulary}", row=row)


def _beyond(tokens: NDArray[np.int32], model: ModelFacts) -> int | None:
    """Returns the place of the first token outside the vocabulary; None if there is none."""
    beyond = np.flatnonzero((tokens < 0) | (tokens >= model.vocabulary))
    return int(beyond[0]) if len(beyond) else None


def _rewards(case: CheckInput, row: int, sample: Sample) -> Iterator[CheckFinding]:
    rule = case.version.recipe.length_reward
    rewards = case.version.environment.rewards
    if not rewards.allows(sample.task_reward):
        allowed = "neither 0 nor 1" if rewards is Rewards.BINARY else "not from 0 to 1"
        yield case.finding(ReasonCode.BOUNDS_REWARD, f"task reward {sample.task_reward} is {allowed}", row=row)
    if case.version.recipe.gateway is not None and sample.reward != 0:
        yield case.finding(ReasonCode.BOUNDS_REWARD, "an answer to a client has no reward", row=row)
    if sample.length_penalty < 0 or (rule is None and sample.length_penalty != 0):
        wanted = "0, because the recipe has no length reward" if rule is None else "at least 0"
        what = f"length penalty {sample.length_penalty} must be {wanted}"
        yield case.finding(ReasonCode.BOUNDS_REWARD, what, row=row)
    if sample.reward != sample.task_reward - sample.length_penalty:
        yield case.finding(
            ReasonCode.BOUNDS_REWARD,
            f"reward {sample.reward} is not task reward {sample.task_reward} minus length penalty "
            f"{sample.length_penalty}",
            row=row,
        )


def _logprobs(case: CheckInput, row: int, sample: Sample, least: float) -> Iterator[CheckFinding]:
    beyond = np.flatnonzero((sample.logprobs > MOST_LOG_PROBABILITY) | (sample.logprobs < least))
    if len(beyond):
        at = int(beyond[0])
        yield case.finding(
            ReasonCode.BOUNDS_LOG_PROBABILITY,
            f"token {at} has a log-probability of {sample.logprobs[at]:.6g}; it must be from {least:.1f} to 0",
            row=row,
            position=at,
        )


CHECK = Check(number=5, name="bounds", cost=Cost.FILE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
