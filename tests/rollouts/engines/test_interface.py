"""Requests that every engine refuses before it does any work."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidInput
from rollouts.engines.errors import PromptTooLong
from rollouts.engines.interface import SampleRequest, check_requests
from rollouts.sampling.parameters import SamplingParameters

SEED = b"\x07" * 32


def request(sample: int = 0, *prompt: int) -> SampleRequest:
    return SampleRequest(sample=sample, prompt_tokens=prompt or (1, 2, 3), seed=SEED)


def check(*requests: SampleRequest, new: int = 5) -> None:
    check_requests(requests, SamplingParameters(max_new_tokens=new), vocabulary=10, context=8)


def test_a_prompt_and_its_answer_may_fill_the_context_exactly() -> None:
    check(request(0), request(1), new=5)


def test_a_prompt_and_its_answer_may_not_exceed_the_context() -> None:
    with pytest.raises(PromptTooLong, match="3 tokens and 6 new ones exceed the model's context of 8"):
        check(request(0), new=6)


def test_a_sample_may_not_stand_twice() -> None:
    with pytest.raises(InvalidInput, match="sample 4 occurs twice"):
        check(request(4), request(5), request(4))


@pytest.mark.parametrize("token", [-1, 10])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(InvalidInput, match="outside the model's vocabulary of 10"):
        check(request(0, 1, token))


def test_an_incomplete_request_is_refused() -> None:
    with pytest.raises(InvalidInput, match="has no tokens"):
        SampleRequest(sample=1, prompt_tokens=(), seed=SEED)
    with pytest.raises(InvalidInput, match="seed can't have 31 bytes"):
        SampleRequest(sample=1, prompt_tokens=(1,), seed=SEED[1:])
    for sample in (-1, 1 << 32):
        with pytest.raises(InvalidInput, match="outside 0 to"):
            SampleRequest(sample=sample, prompt_tokens=(1,), seed=SEED)
