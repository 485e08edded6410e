"""Every attack whose work reaches a validator is judged forged, for the reason given in docs/attacks.md."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from cli.devnet.attacks.attack import Attack, End, Trick
from cli.devnet.attacks.edits import Relabelled
from cli.devnet.attacks.encodings import Bomb, NotFinite
from cli.devnet.attacks.proofs import Forged
from cli.devnet.attacks.registry import ATTACKS
from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST
from protocol.verdicts import Outcome, ReasonCode
from rollouts.files.samples import SlotHeader
from tests.attacks.conftest import Judge, Places, handed_in, open_workshop
from tests.kit.attack_comparison import Compared
from tests.kit.attack_harness import AttackHarness
from validator.examination.interface import Conclusion

pytestmark = pytest.mark.asyncio(loop_scope="session")

JUDGED = {name: cheat for name, cheat in ATTACKS.items() if cheat.end is End.SLASHED and not cheat.dialogues}
UNPAID = {name: cheat for name, cheat in ATTACKS.items() if cheat.end is End.UNPAID}
QUICKER: dict[str, Callable[[], Trick]] = {"bomb": lambda: Bomb(1 << 25)}
"""Smaller bombs, which save seconds of compressing zeros; they are still thousands of times an honest file's limit."""
SLOTS = 8
"""Slots per attack. At 0.8 of the temperature, one file in ten equals the honest one token for token (32 short
answers), and the attack that resubmits one file begins with an honest one: such files are no forgeries and are
accepted."""

_index = itertools.count()


@pytest.mark.parametrize("cheat", JUDGED.values(), ids=JUDGED)
async def test_each_attack_is_judged_forged(cheat: Attack, workshop: AttackHarness, judge: Judge) -> None:
    trick = Compared(QUICKER.get(cheat.name, cheat.trick)())
    for _ in range(SLOTS):
        work = handed_in(workshop, trick, next(_index))
        forged, found = trick.forged(work), await judge(work)
        assert isinstance(found, Conclusion), found
        if forged:
            break
        assert found.outcome is Outcome.ACCEPTED, found.words
    assert forged, "no slot gave a forged file"
    assert isinstance(found, Conclusion)
    assert (found.outcome, found.reason in cheat.reasons) == (Outcome.FORGED, True), found.words
    assert found.reason.may_be_forgery
    assert found.words


@pytest.mark.parametrize("cheat", UNPAID.values(), ids=UNPAID)
async def test_an_unverifiable_choice_of_the_node_is_rejected_without_parking(
    cheat: Attack, workshop: AttackHarness, judge: Judge
) -> None:
    found = await judge(handed_in(workshop, cheat.trick(), next(_index)))
    assert isinstance(found, Conclusion), found
    assert (found.outcome, found.reason in cheat.reasons) == (Outcome.REJECTED, True), found.words
    assert "no stake is lost" in found.words
    assert len(found.audited) == len(found.rows), "the version itself computed it, so it costs no stake"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("column", ["logprobs", "task_reward", "length_penalty", "reward"])
async def test_a_non_finite_number_in_any_column_is_forged(
    column: str, value: float, workshop: AttackHarness, judge: Judge
) -> None:
    found = await judge(handed_in(workshop, NotFinite(column, value), next(_index), groups=1))
    assert isinstance(found, Conclusion)
    assert (found.outcome, found.reason) == (Outcome.FORGED, ReasonCode.FORMAT_NOT_FINITE)


@pytest.mark.parametrize("bits", [b"\x7f\xc0", b"\x7f\x80", b"\xff\x80"], ids=["nan", "inf", "-inf"])
async def test_a_proof_over_non_finite_values_is_forged(bits: bytes, workshop: AttackHarness, judge: Judge) -> None:
    """All points of the proof have this value: a reader that subtracts would compare with NaN."""
    forged = Forged(lambda _, proof: proof[:2] + bits + bytes(len(proof) - 4))
    found = await judge(handed_in(workshop, forged, next(_index), groups=1))
    assert isinstance(found, Conclusion)
    assert (found.outcome, found.reason) == (Outcome.FORGED, ReasonCode.COMPUTATION_OTHER_MODEL)


ELSEWHERE: dict[str, Callable[[SlotHeader], SlotHeader]] = {
    "a stale step": lambda header: replace(header, step=header.step - 1),
    "a future step": lambda header: replace(header, step=header.step + 1),
    "a skipped index": lambda header: replace(header, index=header.index + 1),
    "another node": lambda header: replace(header, node=ZERO_ADDRESS),
    "another run": lambda header: replace(header, run=ZERO_DIGEST),
    "another version": lambda header: replace(header, checkpoint=ZERO_DIGEST),
}


@pytest.mark.parametrize("change", ELSEWHERE.values(), ids=ELSEWHERE)
async def test_a_file_whose_header_contradicts_its_lease_is_forged(
    change: Callable[[SlotHeader], SlotHeader], workshop: AttackHarness, judge: Judge
) -> None:
    work = workshop.hand_in(Relabelled(change), workshop.grant(next(_index), groups=1, step=5))
    assert work is not None
    found = await judge(work)
    assert isinstance(found, Conclusion)
    assert (found.outcome, found.reason) == (Outcome.FORGED, ReasonCode.IDENTITY_OTHER_WORK)


async def test_an_omitted_length_penalty_is_found_by_rescoring(places: Places, judge: Judge) -> None:
    with open_workshop(places, version=2) as node:
        honest = await judge(handed_in(node, Trick(), next(_index)))
        lied = await judge(handed_in(node, ATTACKS["length-penalty-tampered"].trick(), next(_index)))
    assert isinstance(honest, Conclusion)
    assert isinstance(lied, Conclusion)
    assert honest.outcome is Outcome.ACCEPTED, honest.words
    assert (lied.outcome, lied.reason) == (Outcome.FORGED, ReasonCode.REWARD_DIFFERS)
