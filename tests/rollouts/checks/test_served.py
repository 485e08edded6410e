"""Files of served slots: honest ones pass all checks; every difference from the gateway's list is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from protocol.errors import InvalidInput
from protocol.identifiers import ZERO_DIGEST
from protocol.identity.keys import Key
from protocol.wire.served import RequestKind
from rollouts.calibration.limits import float32_limits
from rollouts.checks import (
    EXACT_CHECKS,
    PREFILL_CHECKS,
    SCORE_CHECK,
    CheckedVersion,
    CheckInput,
    CheckOutcome,
    SlotFacts,
    gather,
    seeds,
)
from rollouts.checks.result import CheckResult
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import write_rollouts
from rollouts.models.policy import load_policy
from rollouts.precision import Dtype
from rollouts.recipe import EnvironmentChoice, PromptRange, Recipe, serving_recipe
from rollouts.recompute.torch_recomputer import TorchRecomputer
from rollouts.verify.files import run_check, verify_file, with_evidence
from tests.kit.rollout_files import as_version, facts_of, make, with_rows
from tests.kit.served_files import (
    GATEWAY,
    REQUESTS,
    Body,
    Cheat,
    make_served,
    requests_of,
    served_facts,
    served_version,
    with_list,
)
from tests.kit.tiny_model import tiny_folder

Change = Callable[[RolloutFile, SlotFacts], RolloutFile]


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> CheckedVersion:
    return served_version(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def facts(version: CheckedVersion) -> SlotFacts:
    return served_facts(version)


@pytest.fixture(scope="module")
def honest(version: CheckedVersion, facts: SlotFacts) -> RolloutFile:
    return make_served(version, facts)


@pytest.fixture(scope="module")
def recomputer(version: CheckedVersion) -> TorchRecomputer:
    policy = load_policy(version.folder, dtype=Dtype.FLOAT32, device=torch.device("cpu"))
    return TorchRecomputer(policy, made_in=Dtype.FLOAT32)


def judged(
    file: RolloutFile, facts: SlotFacts, version: CheckedVersion, recomputer: TorchRecomputer
) -> dict[str, CheckResult]:
    case = CheckInput.of(file, facts, version, limits=float32_limits(("tiny",)))
    case = with_evidence(case, recomputer)
    return {check.name: run_check(check, case) for check in (*EXACT_CHECKS, *PREFILL_CHECKS, SCORE_CHECK)}


def test_an_honest_file_passes_all_checks(
    honest: RolloutFile, facts: SlotFacts, version: CheckedVersion, recomputer: TorchRecomputer
) -> None:
    results = judged(honest, facts, version, recomputer)
    assert {one.state for one in results.values()} == {CheckOutcome.PASSED}, [
        one for one in results.values() if one.state is not CheckOutcome.PASSED
    ]
    assert results["sampling"].figures["mismatches"] == 0
    assert results["seeds"].figures["requests"] == len(REQUESTS)
    assert [sample.prompt_index for sample in honest.samples] == [0, 0, 0, 0, 1, 2, 3, 4]


def test_rows_of_different_requests_share_passes(
    honest: RolloutFile, facts: SlotFacts, version: CheckedVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row's evidence is that of a recomputation of its request alone, except for rounding."""
    case = CheckInput.of(honest, facts, version)
    rows = case.with_draws(range(len(honest.samples)))
    rows[2] = replace(rows[2], seed=None)
    policy = load_policy(version.folder, dtype=Dtype.FLOAT32, device=torch.device("cpu"))
    passes = []
    compute = policy.states_and_logits

    def counted(*args: Any, **options: Any) -> Any:
        passes.append(1)
        return compute(*args, **options)

    monkeypatch.setattr(policy, "states_and_logits", counted)
    together = gather(policy, case.drawn_file, rows)
    assert len({*rows.values()}) == 6
    assert 1 <= len(passes) <= 3
    for row, draws in rows.items():
        alone, shared = gather(policy, case.drawn_file, {row: draws})[row], together[row]
        np.testing.assert_allclose(shared.logprobs, alone.logprobs, rtol=1e-4, atol=1e-5)
        assert max(proof.distance_total for proof in (*shared.proofs, *alone.proofs)) <= 64
        assert shared.excess is not None
        assert alone.excess is not None
        np.testing.assert_allclose(shared.excess, alone.excess, rtol=1e-4, atol=1e-4)
        if row == 2:
            assert shared.gaps is alone.gaps is None
            continue
        assert shared.gaps is not None
        assert alone.gaps is not None
        assert not shared.gaps.mismatches.any()
        np.testing.assert_allclose(shared.gaps.outside, alone.gaps.outside, atol=1e-4)


@pytest.mark.parametrize(
    ("cheat", "check"),
    [
        (Cheat(sampling={"temperature": 0.5}), "sampling"),
        (Cheat(texts={1: "42"}), "seeds"),
        (Cheat(sampling={"max_tokens": 3}), "termination"),
    ],
    ids=["other temperature", "client saw another text", "shorter answers"],
)
def test_a_cheat_is_found(
    cheat: Cheat,
    check: str,
    facts: SlotFacts,
    version: CheckedVersion,
    recomputer: TorchRecomputer,
) -> None:
    results = judged(make_served(version, facts, cheat=cheat), facts, version, recomputer)
    assert results[check].state is CheckOutcome.FAILED


def test_answers_of_another_model_are_found(
    facts: SlotFacts, version: CheckedVersion, recomputer: TorchRecomputer, tmp_path: Path
) -> None:
    other = served_version(tmp_path / "other", seed=1)
    results = judged(make_served(version, facts, cheat=Cheat(weights=other.folder)), facts, version, recomputer)
    assert results["computation"].state is CheckOutcome.FAILED
    assert results["sampling"].state is CheckOutcome.FAILED


def _without_last(file: RolloutFile, _: SlotFacts) -> RolloutFile:
    return RolloutFile(file.header, file.samples[:-1], file.served)


def _other_prompt(file: RolloutFile, _: SlotFacts) -> RolloutFile:
    rows = list(file.samples)
    tokens = rows[4].prompt_tokens.copy()
    tokens[0] += 1
    rows[4] = replace(rows[4], prompt_tokens=tokens)
    return RolloutFile(file.header, tuple(rows), file.served)


def _other_answer(file: RolloutFile, _: SlotFacts) -> RolloutFile:
    rows = list(file.samples)
    tokens = rows[6].output_tokens.copy()
    tokens[0] = tokens[0] ^ 1
    rows[6] = replace(rows[6], output_tokens=tokens)
    return RolloutFile(file.header, tuple(rows), file.served)


def _reordered(file: RolloutFile, _: SlotFacts) -> RolloutFile:
    rows = list(file.samples)
    rows[4], rows[5] = rows[5], rows[4]
    return RolloutFile(file.header, tuple(rows), file.served)


def _invented_request(file: RolloutFile, _: SlotFacts) -> RolloutFile:
    extra = replace(file.samples[0], sample=len(file.samples), group=len(file.samples), prompt_index=5)
    return RolloutFile(file.header, (*file.samples, extra), file.served)


def _without_list(file: RolloutFile, _: SlotFacts) -> RolloutFile:
    return with_rows(file, file.samples)


def _with_changed_list(file: RolloutFile, _: SlotFacts) -> RolloutFile:
    assert file.served is not None
    changed = file.served.model_copy(update={"content": file.served.content.replace("12+34", "12+35")})
    return RolloutFile(file.header, file.samples, changed)


def _signed_by_another(file: RolloutFile, facts: SlotFacts) -> RolloutFile:
    return with_list(file, requests_of(file), facts=facts, key=Key(b"\7" * 32))


def _of_another_slot(file: RolloutFile, facts: SlotFacts) -> RolloutFile:
    return with_list(file, requests_of(file), facts=facts, work_key=ZERO_DIGEST)


def _with_a_reward(file: RolloutFile, _: SlotFacts) -> RolloutFile:
    rows = [replace(one, task_reward=1.0, reward=1.0) for one in file.samples]
    return RolloutFile(file.header, tuple(rows), file.served)


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        (_without_last, "seeds", "7 rows, but the listed requests have 8 answers"),
        (_other_prompt, "seeds", "the prompt's tokens differ from those of request 1"),
        (_other_answer, "seeds", "the client got another answer to request 3"),
        (_reordered, "seeds", "row 4 must have sample 4"),
        (_invented_request, "seeds", "9 rows, but the listed requests have 8 answers"),
        (_without_list, "seeds", "no list of served requests"),
        (_with_changed_list, "seeds", "signed the list for this slot, but the version's gateway is"),
        (_signed_by_another, "seeds", "signed the list for this slot, but the version's gateway is"),
        (_of_another_slot, "seeds", "signed the list for this slot, but the version's gateway is"),
        (_with_a_reward, "bounds", "no reward"),
    ],
)
def test_a_changed_file_is_found(
    change: Change, check: str, words: str, honest: RolloutFile, facts: SlotFacts, version: CheckedVersion
) -> None:
    case = CheckInput.of(change(honest, facts), facts, version)
    results = {one.name: run_check(one, case) for one in EXACT_CHECKS}
    assert results[check].state is CheckOutcome.FAILED
    assert words in results[check].findings[0].what


def test_a_long_prompt_and_a_lower_limit_of_the_lease_blame_no_node(
    facts: SlotFacts, version: CheckedVersion, recomputer: TorchRecomputer
) -> None:
    """A gateway can't count a prompt's tokens; the node answers what fits the context."""
    recipe = version.recipe
    assert recipe.max_prompt_tokens == 100
    tokens = [5 + number % 7 for number in range(recipe.max_prompt_tokens + 20)]
    body = {"token_ids": tokens, "sampling_params": {"max_tokens": 3}}
    results = judged(make_served(version, facts, bodies=[(RequestKind.GENERATE, body)]), facts, version, recomputer)
    assert {one.state for one in results.values()} == {CheckOutcome.PASSED}
    chat: Body = (RequestKind.CHAT, {"model": "m", "messages": [{"role": "user", "content": "1"}]})
    lower = replace(facts, max_units=5 * facts.groups)
    file = make_served(version, facts, bodies=[(chat[0], {**chat[1], "max_tokens": 5})])
    listed = [requests_of(file)[0].model_copy(update={"body": json.dumps(chat[1])})]
    results = judged(with_list(file, listed, facts=facts), lower, version, recomputer)
    assert {one.state for one in results.values()} == {CheckOutcome.PASSED}


def test_more_answers_than_leased_are_found(honest: RolloutFile, facts: SlotFacts, version: CheckedVersion) -> None:
    case = CheckInput.of(honest, replace(facts, groups=7), version)
    assert "8 answers, but the lease allows 7" in seeds.judge(case).findings[0].what


@pytest.mark.parametrize(
    "body",
    [
        (RequestKind.COMPLETION, {"model": "m", "prompt": "1", "stop": ["x"]}),
        (RequestKind.CHAT, {"model": "m", "messages": []}),
        (RequestKind.COMPLETION, {"model": "m", "prompt": "1", "n": 2}),
    ],
    ids=["unsupported option", "no messages", "more choices than answers"],
)
def test_a_request_that_no_task_answers_is_found(
    body: tuple[RequestKind, dict[str, object]], honest: RolloutFile, facts: SlotFacts, version: CheckedVersion
) -> None:
    kind, content = body
    first, *others = requests_of(honest)
    listed = [first, others[0].model_copy(update={"kind": kind, "body": json.dumps(content)}), *others[1:]]
    case = CheckInput.of(with_list(honest, listed, facts=facts), facts, version)
    assert "request 1 of the list can't be answered" in seeds.judge(case).findings[0].what


def test_a_list_belongs_to_served_versions_only(honest: RolloutFile, tmp_path: Path) -> None:
    learning = as_version(tiny_folder(tmp_path / "model"))
    facts = facts_of(learning)
    file = make(learning, facts=facts)
    case = CheckInput.of(RolloutFile(file.header, file.samples, honest.served), facts, learning)
    assert "not served by a gateway" in seeds.judge(case).findings[0].what


def test_the_command_checks_a_served_file_with_and_without_its_lease(
    honest: RolloutFile, facts: SlotFacts, version: CheckedVersion, tmp_path: Path
) -> None:
    path = tmp_path / "file.parquet"
    write_rollouts(path, honest)
    known = verify_file(path, version, facts=facts)
    assert not known.rejected
    assert not known.unknown
    unknown = verify_file(path, version)
    assert not unknown.rejected
    assert any("signature was not checked" in one.note for one in unknown.results)
    write_rollouts(path, _without_list(honest, facts))
    assert "seeds" in [one.check for one in verify_file(path, version, facts=facts).failed]


def test_a_served_recipe_has_no_groups_lengths_or_held_out_prompts() -> None:
    recipe = serving_recipe(GATEWAY.address, max_new_tokens=8, max_prompt_tokens=8)
    assert recipe.gateway == GATEWAY.address
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    for change in ({"group_size": 2}, {"held_out": 0.1}, {"prompts": PromptRange(count=2)}):
        with pytest.raises(ValidationError, match=r"served version|come from clients"):
            Recipe(**{**dict(recipe), **change})
    choice = EnvironmentChoice(name="served", version="1", options={"gateway": "me"})
    with pytest.raises((ValidationError, InvalidInput)):
        Recipe(**{**dict(recipe), "environment": choice})


def test_slots_of_a_served_version_can_not_be_planned(version: CheckedVersion) -> None:
    with pytest.raises(InvalidInput, match="come from the clients of a gateway"):
        version.planner.plan(b"\1" * 32, groups=1)
