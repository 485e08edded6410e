"""Choice of the name under which a task's files are paid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from protocol.errors import InvalidInput
from rollouts.engines.interface import Engine
from rollouts.precision import Arithmetic
from rollouts.task.arithmetic import ArithmeticNotTaken, ArithmeticNotVerifiable, paid_arithmetic

AVX2, AVX512 = "vllm-0.32.0/bfloat16/cpu-avx2", "vllm-0.32.0/bfloat16/cpu-avx512"
VLLM, TORCH = "vllm/bfloat16", "torch/float32"


class NamedEngine:
    """An engine of which only the names matter."""

    def __init__(self, *names: str) -> None:
        self.arithmetics = tuple(map(Arithmetic.parse, names))


def choose(own: Sequence[str], taken: Sequence[str], unverifiable: Sequence[str]) -> str:
    return str(paid_arithmetic(taken, cast("Engine", NamedEngine(*own)), unverifiable=unverifiable))


@pytest.mark.parametrize(
    ("own", "taken", "unverifiable", "expected"),
    [
        ((AVX512, VLLM), (AVX512, VLLM), (), AVX512),
        ((AVX512, VLLM), (), (), AVX512),
        ((AVX512, VLLM), (AVX512, VLLM), (AVX512,), VLLM),
        ((AVX512, VLLM), (AVX512, AVX2, VLLM), (AVX2,), AVX512),
        ((AVX512, AVX2, VLLM), (AVX512, AVX2), (AVX512,), AVX2),
        ((VLLM,), (AVX512, VLLM), (AVX512,), VLLM),
        ((AVX512, VLLM), (AVX512,), (AVX512,), ArithmeticNotVerifiable),
        ((AVX512, VLLM), (AVX512, AVX2, TORCH), (AVX512,), ArithmeticNotVerifiable),
        ((AVX512, AVX2, VLLM), (AVX512, AVX2), (AVX512, AVX2), ArithmeticNotVerifiable),
        ((VLLM,), (AVX512,), (AVX512,), ArithmeticNotTaken),
        ((AVX512, VLLM), (TORCH,), (), ArithmeticNotTaken),
    ],
)
def test_the_first_accepted_name_that_validators_can_verify_is_used(
    own: Sequence[str], taken: Sequence[str], unverifiable: Sequence[str], expected: str | type[InvalidInput]
) -> None:
    if isinstance(expected, str):
        assert choose(own, taken, unverifiable) == expected
    else:
        with pytest.raises(expected):
            choose(own, taken, unverifiable)


def test_the_error_names_the_own_class_what_validators_verify_and_what_to_do() -> None:
    with pytest.raises(ArithmeticNotVerifiable) as caught:
        choose((AVX512, VLLM), (AVX512, AVX2, TORCH), (AVX512,))
    assert caught.value.code == "arithmetic-not-verifiable"
    assert caught.value.detail == (
        f"this machine computes {AVX512}, which no validator of the pool can verify; of the names that this version is "
        f"paid for, validators can verify {AVX2}, {TORCH}"
    )
    assert f"run a validator that reproduces {AVX512}" in caught.value.hint
    assert "`--engine vllm --dtype bfloat16 --numerics cpu-avx2` and vLLM 0.32.0" in caught.value.hint


def test_the_hint_proposes_a_pair_if_validators_verify_none_of_the_paid_names() -> None:
    with pytest.raises(ArithmeticNotVerifiable, match="validators can verify none") as caught:
        choose((AVX512, VLLM), (AVX512, AVX2), (AVX512, AVX2))
    assert f"add {VLLM}, which every validator verifies, to `arithmetic`" in caught.value.hint


@pytest.mark.parametrize("unverifiable", [(), (AVX512,)])
def test_a_paid_name_of_a_later_release_is_shown_as_it_is(unverifiable: Sequence[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        choose((AVX512, VLLM) if unverifiable else (VLLM,), ("sglang/float8", AVX512), unverifiable)
    assert "post the task with sglang/float8" in caught.value.hint
