"""A file of an attack counts as forged only if it differs from the honest file of the same slot."""

from __future__ import annotations

import itertools

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.copies import Replayed
from cli.devnet.attacks.draws import OtherParameters
from cli.devnet.attacks.edits import Inflated, Rewritten, unlikelier
from tests.attacks.conftest import handed_in
from tests.kit.attack_comparison import Compared
from tests.kit.attack_harness import AttackHarness

_index = itertools.count(5_000)


def forged(workshop: AttackHarness, trick: Trick) -> bool:
    compared = Compared(trick)
    return compared.forged(handed_in(workshop, compared, next(_index), groups=1))


def test_honest_files_are_not_forged_under_any_sampling_parameters(workshop: AttackHarness) -> None:
    assert not forged(workshop, Trick())
    assert not forged(workshop, OtherParameters(temperature=1.0)), "drawn correctly, and proven by a prefill"
    assert not forged(workshop, Rewritten(lambda _, sample: sample))


def test_a_changed_log_probability_or_inflated_token_count_is_a_forgery(workshop: AttackHarness) -> None:
    always = Rewritten(lambda bench, sample: unlikelier(bench, sample) if sample.sample == 0 else sample)
    assert forged(workshop, Inflated())
    assert forged(workshop, OtherParameters(temperature=1.0, top_k=1))
    assert any(forged(workshop, always) for _ in range(8)), "log-probabilities of a right first answer are lowered"


def test_a_replayed_file_is_honest_the_first_time_and_forged_the_second(workshop: AttackHarness) -> None:
    compared = Compared(Replayed())
    assert not compared.forged(handed_in(workshop, compared, next(_index)))
    assert compared.forged(handed_in(workshop, compared, next(_index)))
