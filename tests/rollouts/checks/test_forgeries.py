"""An honest file passes; every change to it is found by the right check at the right place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from protocol.errors import MusterError
from protocol.identifiers import address, digest
from protocol.verdicts import ReasonCode
from rollouts.calibration.limits import float32_limits
from rollouts.checks import (
    EXACT_CHECKS,
    PREFILL_CHECKS,
    SCORE_CHECK,
    CheckedVersion,
    CheckInput,
    CheckOutcome,
    Fails,
    SeedParts,
    SlotFacts,
    bounds,
    reward,
    seeds,
)
from rollouts.checks.result import CheckResult
from rollouts.checks.scoring import RowScore
from rollouts.engines.interface import FinishReason
from rollouts.environments import Prompt
from rollouts.environments.errors import BadDataset, EnvironmentFault
from rollouts.environments.validation import CheckedEnvironment
from rollouts.files.samples import RolloutFile, Sample
from rollouts.models.policy import Policy
from rollouts.precision import Dtype
from rollouts.recompute.torch_recomputer import TorchRecomputer
from rollouts.sandbox import SandboxUnavailable
from rollouts.verify.files import run_check, with_evidence
from tests.kit.rollout_files import EACH, GROUPS, LIMIT, PARTS, with_row, with_rows
from tests.kit.tiny_model import END

Judge = Callable[[RolloutFile, SlotFacts], dict[str, CheckResult]]


@pytest.fixture(scope="module")
def judge(version: CheckedVersion, policy: Policy) -> Judge:
    def every_check(file: RolloutFile, facts: SlotFacts) -> dict[str, CheckResult]:
        case = CheckInput(file=file, facts=facts, version=version, limits=float32_limits(("tiny",)))
        case = with_evidence(case, TorchRecomputer(policy, made_in=Dtype.FLOAT32))
        return {check.name: run_check(check, case) for check in (*EXACT_CHECKS, *PREFILL_CHECKS, SCORE_CHECK)}

    return every_check


def full_row(file: RolloutFile) -> int:
    """Returns a row that ran to the token limit."""
    return next(row for row, one in enumerate(file.samples) if one.finish is FinishReason.LENGTH)


def ended_row(file: RolloutFile) -> int:
    """Returns a row that ended with an end token."""
    return next(row for row, one in enumerate(file.samples) if one.finish is FinishReason.EOS)


def cut(sample: Sample, length: int) -> Sample:
    """Returns the sample cut to its first tokens."""
    return replace(
        sample,
        output_tokens=sample.output_tokens[:length],
        logprobs=sample.logprobs[:length],
        proofs=sample.proofs[: 258 * -(-length // 32)],
    )


def with_token(sample: Sample, at: int) -> Sample:
    """Returns the sample with one token replaced by another that is no end token."""
    tokens = sample.output_tokens.copy()
    tokens[at] = 10 if tokens[at] != 10 else 11
    return replace(sample, output_tokens=tokens)


def test_an_honest_file_passes_every_check(judge: Judge, honest: RolloutFile, facts: SlotFacts) -> None:
    results = judge(honest, replace(facts, units=honest.units))
    assert [one for one in results.values() if one.state is not CheckOutcome.PASSED] == []
    assert results["sampling"].figures["mismatches"] == 0
    # otherwise the rows below would not be found
    assert {sample.finish for sample in honest.samples} == set(FinishReason)


def test_one_changed_output_token_is_found_by_the_replay(judge: Judge, honest: RolloutFile, facts: SlotFacts) -> None:
    row = full_row(honest)
    results = judge(with_row(honest, row, with_token(honest.samples[row], 5)), facts)
    [finding, *_] = results["sampling"].findings
    assert (finding.reason, finding.row, finding.position) == (ReasonCode.SAMPLING_REPLAY, row, 5)
    assert all(other.row in {row, None} for other in results["sampling"].findings)


def test_one_changed_proof_byte_is_found_by_the_computation_check(
    judge: Judge, honest: RolloutFile, facts: SlotFacts
) -> None:
    row = full_row(honest)
    proofs = bytearray(honest.samples[row].proofs)
    proofs[258 + 101] ^= 1
    results = judge(with_row(honest, row, replace(honest.samples[row], proofs=bytes(proofs))), facts)
    [finding, *_] = results["computation"].findings
    assert (finding.reason, finding.row, finding.position) == (ReasonCode.COMPUTATION_OTHER_MODEL, row, 32)
    assert [name for name, one in results.items() if one.state is CheckOutcome.FAILED] == ["computation"]


@pytest.mark.parametrize("proofs", [b"", b"\0" * 258, b"\xff" * 516, b"\0" * 516, b"\0" * 517])
def test_malformed_proofs_are_forgery(judge: Judge, honest: RolloutFile, facts: SlotFacts, proofs: bytes) -> None:
    row = full_row(honest)
    result = judge(with_row(honest, row, replace(honest.samples[row], proofs=proofs)), facts)["computation"]
    assert (result.state, result.fails) == (CheckOutcome.FAILED, Fails.EXACT)
    assert {(one.reason, one.row) for one in result.findings} == {(ReasonCode.COMPUTATION_PROOF_MALFORMED, row)}


def test_one_changed_reward_is_found_by_rescoring(judge: Judge, honest: RolloutFile, facts: SlotFacts) -> None:
    lied = replace(honest.samples[4], task_reward=1.0, reward=1.0 - honest.samples[4].length_penalty)
    results = judge(with_row(honest, 4, lied), facts)
    [finding] = results["reward"].findings
    assert (finding.reason, finding.row) == (ReasonCode.REWARD_DIFFERS, 4)
    assert [name for name, one in results.items() if one.state is CheckOutcome.FAILED] == ["reward"]


def test_a_reward_that_is_not_the_sum_of_its_parts_is_out_of_bounds(
    judge: Judge, honest: RolloutFile, facts: SlotFacts
) -> None:
    results = judge(with_row(honest, 4, replace(honest.samples[4], reward=0.5)), facts)
    assert [(one.reason, one.row) for one in results["bounds"].findings] == [(ReasonCode.BOUNDS_REWARD, 4)]


def test_one_changed_log_probability_is_found(judge: Judge, honest: RolloutFile, facts: SlotFacts) -> None:
    row = full_row(honest)
    logprobs = honest.samples[row].logprobs.copy()
    logprobs[7] -= 0.25
    results = judge(with_row(honest, row, replace(honest.samples[row], logprobs=logprobs)), facts)
    finding = results["logprobs"].findings[0]
    assert (finding.reason, finding.row, finding.position) == (ReasonCode.LOG_PROBABILITIES_DIFFER, row, 7)
    assert [name for name, one in results.items() if one.state is CheckOutcome.FAILED] == ["logprobs"]


SeedCase = tuple[Callable[[RolloutFile], RolloutFile], ReasonCode, str]
SEED_CASES: dict[str, SeedCase] = {
    "another prompt's index": (
        lambda file: with_row(file, 2, replace(file.samples[2], prompt_index=file.samples[2].prompt_index + 1)),
        ReasonCode.SEED_PROMPTS,
        "the seed draws prompt",
    ),
    "other prompt tokens": (
        lambda file: with_row(file, 2, replace(file.samples[2], prompt_tokens=file.samples[2].prompt_tokens[:-1])),
        ReasonCode.SEED_PROMPTS,
        "tokens differ from those of prompt",
    ),
    "another target": (
        lambda file: with_row(file, 2, replace(file.samples[2], target_length=7)),
        ReasonCode.SEED_TARGETS,
        "the seed draws",
    ),
    "a sample left out": (
        lambda file: with_rows(file, [*file.samples[:5], *file.samples[6:]]),
        ReasonCode.SEED_GROUPS,
        "group 1 lacks sample 5",
    ),
    "a group left out": (
        lambda file: with_rows(file, file.samples[: EACH * (GROUPS - 1)]),
        ReasonCode.SEED_GROUPS,
        "group 2 lacks samples 8, 9, 10, 11 of its 4 samples",
    ),
    "a sample twice": (
        lambda file: with_rows(file, [*file.samples, file.samples[3]]),
        ReasonCode.SEED_GROUPS,
        "sample 3 is repeated here",
    ),
    "a sample too many": (
        lambda file: with_rows(file, [*file.samples, replace(file.samples[3], sample=99, group=24)]),
        ReasonCode.SEED_GROUPS,
        "past the slot's 12 samples",
    ),
    "rows in another order": (
        lambda file: with_rows(file, [file.samples[1], file.samples[0], *file.samples[2:]]),
        ReasonCode.SEED_GROUPS,
        "sample 0 must be here",
    ),
    "a sample moved to another group": (
        lambda file: with_row(file, 2, replace(file.samples[2], group=1)),
        ReasonCode.SEED_GROUPS,
        "belongs to group 0",
    ),
}


@pytest.mark.parametrize("case", SEED_CASES.values(), ids=SEED_CASES)
def test_chosen_prompts_or_samples_are_found_by_the_seeds(
    judge: Judge, honest: RolloutFile, facts: SlotFacts, case: SeedCase
) -> None:
    change, reason, said = case
    result = judge(change(honest), facts)["seeds"]
    assert (result.state, result.fails) == (CheckOutcome.FAILED, Fails.EXACT)
    assert said in result.findings[0].what
    assert result.findings[0].reason is reason


SEEN_WITHOUT = ["another prompt's index", "other prompt tokens", "another target", "a sample left out"]


@pytest.mark.parametrize("case", SEEN_WITHOUT)
def test_most_choices_of_prompts_are_found_without_the_seed(
    judge: Judge, honest: RolloutFile, facts: SlotFacts, case: str
) -> None:
    blind = replace(facts, parts=None)
    assert judge(honest, blind)["seeds"].state is CheckOutcome.PASSED
    results = judge(SEED_CASES[case][0](honest), blind)
    assert (results["seeds"].state, results["sampling"].state) == (CheckOutcome.FAILED, CheckOutcome.UNKNOWN)
    assert "seed" in results["sampling"].note


def test_the_cost_of_drawing_is_bounded_for_a_file_that_names_many_groups(
    judge: Judge, honest: RolloutFile, facts: SlotFacts
) -> None:
    scattered = with_rows(honest, [replace(one, group=1000 + row) for row, one in enumerate(honest.samples)])
    one_a_group = replace(SlotFacts.of_file(scattered, parts=facts.parts), groups=4 * len(honest.samples))
    [finding] = judge(scattered, one_a_group)["seeds"].findings
    assert finding.what == "the file has 12 samples, but its 48 groups need 192"


def test_without_the_seed_a_group_must_still_have_one_prompt(
    judge: Judge, honest: RolloutFile, facts: SlotFacts
) -> None:
    other = honest.samples[EACH]
    row = replace(
        honest.samples[1],
        prompt_index=other.prompt_index,
        prompt_tokens=other.prompt_tokens,
        target_length=other.target_length,
    )
    result = judge(with_row(honest, 1, row), replace(facts, parts=None))["seeds"]
    assert [(one.reason, one.row) for one in result.findings] == [(ReasonCode.SEED_PROMPTS, 1)]
    assert f"its group began with prompt {honest.samples[0].prompt_index}" in result.findings[0].what


@pytest.mark.parametrize(("limited", "rows"), [(False, [1]), (True, [])])
def test_a_reward_claimed_too_low_is_excused_only_after_a_scoring_limit(
    version: CheckedVersion, honest: RolloutFile, facts: SlotFacts, limited: bool, rows: list[int]
) -> None:
    claimed = honest.samples[1]
    assert claimed.task_reward == 0.0
    penalty = claimed.length_penalty
    worth = RowScore(task=1.0, length_penalty=penalty, reward=1.0 - penalty, limited=limited)
    result = reward.compared(CheckInput(file=honest, facts=facts, version=version), {1: worth})
    assert [one.row for one in result.findings] == rows
    if limited:
        assert (result.rows[1]["task"], result.rows[1]["reward"]) == (None, None), "the row has no reward to learn from"


@pytest.mark.parametrize(("less", "of", "found"), [(1, 12, 0), (2, 12, 2), (2, 120, 0), (3, 120, 3)])
def test_only_a_few_rows_may_claim_too_low_a_reward(
    version: CheckedVersion, honest: RolloutFile, facts: SlotFacts, less: int, of: int, found: int
) -> None:
    row = next(one for one in honest.samples if one.task_reward == 0.0)
    file = replace(honest, samples=(row,) * of)
    right = RowScore(task=0.0, length_penalty=row.length_penalty, reward=row.reward, limited=True)
    more = replace(right, task=1.0, reward=1.0 - row.length_penalty)
    scores = {at: more if at < less else right for at in range(of)}
    result = reward.compared(CheckInput(file=file, facts=facts, version=version), scores)
    assert (result.found, result.figures["claimed_less"]) == (found, found)
    assert [result.rows[at]["reward"] is None for at in range(less)] == [found == 0] * less


def test_a_row_that_claims_too_low_a_reward_must_be_correct_otherwise(
    version: CheckedVersion, honest: RolloutFile, facts: SlotFacts
) -> None:
    row = honest.samples[1]
    penalty = row.length_penalty
    score = RowScore(task=1.0, length_penalty=penalty + 0.5, reward=0.5 - penalty, limited=True)
    result = reward.compared(CheckInput(file=honest, facts=facts, version=version), {1: score})
    assert (result.found, result.figures["claimed_less"]) == (1, 0)


@pytest.mark.parametrize("claimed", [0.0, 1.0])
def test_any_reward_is_excused_if_a_limit_ended_the_scoring(
    version: CheckedVersion, honest: RolloutFile, facts: SlotFacts, claimed: float
) -> None:
    row = honest.samples[1]
    file = with_row(honest, 1, replace(row, task_reward=claimed, reward=claimed - row.length_penalty))
    worth = RowScore(length_penalty=row.length_penalty, limited=True, slow=True)
    result = reward.compared(CheckInput(file=file, facts=facts, version=version), {1: worth})
    assert (result.findings, result.figures["excused"]) == ((), 1)


OTHER_PARTS = {
    "another beacon": replace(PARTS, beacon=digest(b"\1" * 32)),
    "another salt": replace(PARTS, salt=digest(b"\1" * 32)),
    "another pool": replace(PARTS, pool_id=PARTS.pool_id + 1),
    "another chain": replace(PARTS, chain_id=PARTS.chain_id + 1),
}


@pytest.mark.parametrize("parts", OTHER_PARTS.values(), ids=OTHER_PARTS)
def test_every_part_of_the_seed_changes_the_prompts(
    judge: Judge, honest: RolloutFile, facts: SlotFacts, parts: SeedParts
) -> None:
    assert judge(honest, replace(facts, parts=parts))["seeds"].state is CheckOutcome.FAILED


EndCase = tuple[Callable[[RolloutFile], tuple[int, Sample]], ReasonCode]


def _padded(file: RolloutFile) -> tuple[int, Sample]:
    row = ended_row(file)
    one = file.samples[row]
    tokens, logprobs = np.append(one.output_tokens, np.int32(END)), np.append(one.logprobs, np.float32(-1))
    return row, replace(one, output_tokens=tokens, logprobs=logprobs)


def _short(file: RolloutFile) -> tuple[int, Sample]:
    row = full_row(file)
    return row, cut(file.samples[row], LIMIT - 3)


END_CASES: dict[str, EndCase] = {
    "padding after the end": (_padded, ReasonCode.TERMINATION_LATE),
    "cut off early": (_short, ReasonCode.TERMINATION_EARLY),
    "said to have ended": (
        lambda file: (full_row(file), replace(file.samples[full_row(file)], finish=FinishReason.EOS)),
        ReasonCode.TERMINATION_EARLY,
    ),
    "said to be at the limit": (
        lambda file: (ended_row(file), replace(file.samples[ended_row(file)], finish=FinishReason.LENGTH)),
        ReasonCode.TERMINATION_EARLY,
    ),
}


@pytest.mark.parametrize("case", END_CASES.values(), ids=END_CASES)
def test_wrong_finish_reasons_are_found(judge: Judge, honest: RolloutFile, facts: SlotFacts, case: EndCase) -> None:
    change, reason = case
    row, sample = change(honest)
    result = judge(with_row(honest, row, sample), facts)["termination"]
    assert [(one.reason, one.row) for one in result.findings] == [(reason, row)]


def test_inflated_work_units_are_found(judge: Judge, honest: RolloutFile, facts: SlotFacts) -> None:
    result = judge(honest, replace(facts, units=honest.units + 1))["bounds"]
    assert [one.reason for one in result.findings] == [ReasonCode.BOUNDS_UNITS]
    result = judge(honest, replace(facts, max_units=honest.units - 1))["bounds"]
    assert [one.reason for one in result.findings] == [ReasonCode.BOUNDS_UNITS]


BOUNDS: dict[str, tuple[dict[str, object], ReasonCode]] = {
    "a probability above one": ({"logprobs": np.float32(0.1)}, ReasonCode.BOUNDS_LOG_PROBABILITY),
    "less probable than can be drawn": ({"logprobs": np.float32(-40)}, ReasonCode.BOUNDS_LOG_PROBABILITY),
    "a negative penalty": ({"length_penalty": -0.5, "task_reward": 0.0, "reward": 0.5}, ReasonCode.BOUNDS_REWARD),
    "half a task": ({"length_penalty": 0.0, "task_reward": 0.5, "reward": 0.5}, ReasonCode.BOUNDS_REWARD),
}


@pytest.mark.parametrize("case", BOUNDS.values(), ids=BOUNDS)
def test_numbers_out_of_bounds_are_found(
    judge: Judge, honest: RolloutFile, facts: SlotFacts, case: tuple[dict[str, object], ReasonCode]
) -> None:
    changes, reason = dict(case[0]), case[1]
    if "logprobs" in changes:
        changes["logprobs"] = np.full_like(honest.samples[1].logprobs, changes["logprobs"])
    result = judge(with_row(honest, 1, replace(honest.samples[1], **changes)), facts)["bounds"]  # type: ignore[arg-type]  # of the table above
    assert [(one.reason, one.row) for one in result.findings] == [(reason, 1)]


def test_an_answer_beyond_the_models_context_is_found_and_never_computed(
    version: CheckedVersion, honest: RolloutFile, facts: SlotFacts
) -> None:
    lengths = [len(one.prompt_tokens) + len(one.output_tokens) for one in honest.samples]
    small = replace(version, model=replace(version.model, context=max(lengths) - 1))
    case = CheckInput(file=honest, facts=facts, version=small)
    beyond = [row for row, length in enumerate(lengths) if length == max(lengths)]
    assert [(one.reason, one.row) for one in run_check(bounds.CHECK, case).findings] == [
        (ReasonCode.BOUNDS_LENGTH, row) for row in beyond
    ]
    assert not bounds.fits_model(case)


@pytest.mark.parametrize("error", [EnvironmentFault("it raised"), BadDataset("it changed"), SandboxUnavailable("none")])
@pytest.mark.parametrize("parts", [None, PARTS])
def test_a_failure_of_this_machine_or_of_the_environment_is_no_finding(
    honest: RolloutFile,
    facts: SlotFacts,
    version: CheckedVersion,
    monkeypatch: pytest.MonkeyPatch,
    error: MusterError,
    parts: SeedParts | None,
) -> None:
    def fail(_environment: CheckedEnvironment, _index: int) -> Prompt:
        raise error

    monkeypatch.setattr(CheckedEnvironment, "prompt", fail)
    case = CheckInput(file=honest, facts=replace(facts, parts=parts), version=version)
    for check in (seeds.CHECK, SCORE_CHECK):
        result = run_check(check, case)
        assert (result.state, result.findings, result.note) == (CheckOutcome.UNKNOWN, (), error.detail)


HEADERS: dict[str, object] = {
    "run": digest(b"\2" * 32),
    "step": 4,
    "index": 0,
    "node": address("0x" + "b2" * 20),
    "checkpoint": digest(b"\3" * 32),
    "environment": "arithmetic",
    "environment_version": "2",
}


@pytest.mark.parametrize(("field", "value"), HEADERS.items(), ids=HEADERS)
def test_work_of_another_slot_is_found(
    judge: Judge, honest: RolloutFile, facts: SlotFacts, field: str, value: object
) -> None:
    header = replace(honest.header, **{field: value})  # type: ignore[arg-type]  # of the table above
    result = judge(RolloutFile(header, honest.samples), facts)["identity"]
    assert [one.reason for one in result.findings] == [ReasonCode.IDENTITY_OTHER_WORK]
    assert str(value) in result.findings[0].what
