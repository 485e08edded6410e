"""A packed prefill gives the same states and logits as a plain one, for any packing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import Dtype
from rollouts.prefill import PrefillItem, prefill
from tests.kit.tiny_model import CONTEXT, VOCABULARY

CPU = torch.device("cpu")
GROUPS = st.lists(
    st.tuples(st.integers(1, 60), st.lists(st.integers(1, 70), min_size=1, max_size=4)), min_size=1, max_size=4
)


Pair = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def policy(request: pytest.FixtureRequest) -> Policy:
    folder: Path = request.getfixturevalue(request.param)
    return load_policy(folder, dtype=Dtype.FLOAT32, device=CPU)


def answers_of(groups: list[tuple[int, list[int]]], seed: int) -> list[PrefillItem]:
    random = np.random.default_rng(seed)

    def some(count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return random.integers(0, VOCABULARY, count).astype(np.int32)

    return [
        PrefillItem(prompt, some(length)) for count, lengths in groups for prompt in [some(count)] for length in lengths
    ]


@torch.no_grad()
def plainly(policy: Policy, answer: PrefillItem) -> Pair:
    """Returns states and logits of one answer, by one plain pass over prompt and answer."""
    tokens = torch.from_numpy(np.concatenate([answer.prompt, answer.output]).astype(np.int64))
    states, logits = policy.states_and_logits(tokens[None])
    wanted = slice(len(answer.prompt) - 1, len(tokens) - 1)
    return states[0, wanted], logits[0, wanted]


def packed(policy: Policy, answers: list[PrefillItem], tokens_at_once: int | None) -> list[Pair]:
    """Returns the same of all answers, packed; every stretch must come once and in order."""
    parts: list[list[Pair]] = [[] for _ in answers]
    reached = [0] * len(answers)
    for rows in prefill(policy, answers, tokens_at_once=tokens_at_once):
        assert len(rows.states) == len(rows.logits) <= (tokens_at_once or 10**9)
        at = 0
        for span in rows.spans:
            assert span.start == reached[span.answer]
            reached[span.answer] = span.stop
            here = slice(at, at := at + span.stop - span.start)
            parts[span.answer].append((rows.states[here], rows.logits[here]))
    assert reached == [len(answer.output) for answer in answers]
    return [(torch.cat([one for one, _ in part]), torch.cat([one for _, one in part])) for part in parts]


@settings(max_examples=10)
@given(groups=GROUPS, tokens_at_once=st.one_of(st.none(), st.integers(1, 200)), seed=st.integers(0, 1000))
def test_packed_states_and_logits_equal_those_of_a_separate_pass(
    policy: Policy, groups: list[tuple[int, list[int]]], tokens_at_once: int | None, seed: int
) -> None:
    answers = answers_of(groups, seed)
    for answer, found in zip(answers, packed(policy, answers, tokens_at_once), strict=True):
        for ours, plain in zip(found, plainly(policy, answer), strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-4)


def test_rows_of_unequal_lengths_do_not_attend_to_each_other_or_to_padding(policy: Policy) -> None:
    answers = answers_of([(3, [20, 18]), (1, [19]), (5, [16])], 5)
    passes = [rows.spans for rows in prefill(policy, answers)]
    assert [len(spans) for spans in passes] == [4]
    for answer, found in zip(answers, packed(policy, answers, None), strict=True):
        for ours, plain in zip(found, plainly(policy, answer), strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-4)


def test_an_answer_does_not_attend_to_its_neighbours(policy: Policy) -> None:
    """Whole neighbours are exchanged; leaked states would change by about their own size."""
    one, *others = answers_of([(9, [20, 20]), (9, [20, 20])], 1)
    alone = packed(policy, [one], None)[0][0]
    together = packed(policy, [one, *others], None)[0][0]
    elsewhere = packed(policy, [*answers_of([(9, [20, 20])], 2), one], None)[-1][0]
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(elsewhere, alone, rtol=1e-5, atol=1e-4)


def test_the_prompt_of_a_group_is_computed_once(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    for name in ("states_and_logits", "fill"):
        pass_of_its_own = getattr(Policy, name)

        def counted(self: Policy, tokens: torch.Tensor, *, whole: Any = pass_of_its_own, **rest: Any) -> Any:
            computed.append(tokens.numel())
            return whole(self, tokens, **rest)

        monkeypatch.setattr(Policy, name, counted)
    answers = answers_of([(100, [10] * 8)], 3)
    for tokens_at_once in (None, 50):
        computed.clear()
        packed(policy, answers, tokens_at_once)
        assert sum(computed) == 99 + 8 * 10


@pytest.mark.parametrize(
    ("prompt", "output", "said"),
    [
        ([1], [VOCABULARY], "outside the vocabulary"),
        ([-1], [1], "outside the vocabulary"),
        ([1] * CONTEXT, [1], "context"),
    ],
)
def test_tokens_that_do_not_fit_the_model_are_refused(
    policy: Policy, prompt: list[int], output: list[int], said: str
) -> None:
    answer = PrefillItem(np.array(prompt, np.int32), np.array(output, np.int32))
    with pytest.raises(InvalidInput, match=said):
        next(prefill(policy, [answer]))
