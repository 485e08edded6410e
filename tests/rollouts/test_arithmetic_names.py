"""Names of engines with data types, and of numerics classes: parsing, files and recipes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from protocol.wire.runs import ArithmeticName
from rollouts.engines.interface import Engine
from rollouts.errors import BadRolloutFile
from rollouts.files.limits import ReadLimits
from rollouts.files.packed_format import pack, unpack
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import read_rollout_bytes, read_rollouts, table_of, write_rollouts
from rollouts.files.self_test_file import TRIAL_LIMITS, trial_file
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recipe import Recipe
from rollouts.task.arithmetic import ArithmeticNotTaken, paid_arithmetic
from tests.kit.rollout_files import RECIPE

PAIR, CLASS = "vllm/bfloat16", "vllm-0.32.0/bfloat16/cpu-avx512_bf16"
NAMES = ["torch/float32", PAIR, CLASS, "vllm-0.32.0/float32/cpu-avx2", "vllm-0.33.1rc1/bfloat16/sm_90"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_parsed_and_written_back(name: str) -> None:
    arithmetic = Arithmetic.parse(name)
    assert str(arithmetic) == name
    assert Arithmetic.model_validate(arithmetic.model_dump(mode="json")) == arithmetic
    assert arithmetic.is_class is (name.count("/") == 2)
    assert str(arithmetic.pair) == f"{arithmetic.engine.value}/{arithmetic.dtype.value}"
    assert TypeAdapter(ArithmeticName).validate_python(name) == name, "the wire carries every name"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "neither ENGINE/TYPE nor a numerics class"),
        ("vllm", "neither ENGINE/TYPE nor a numerics class"),
        ("vllm/bfloat16/", "neither ENGINE/TYPE nor a numerics class"),
        ("jax/float32", "engine: Input should be"),
        ("vllm/float16", "dtype: Input should be"),
        ("vllm-0.32.0/bfloat16", "a numerics class has both"),
        ("vllm/bfloat16/cpu-avx2", "a numerics class has both"),
        ("torch-2.13/float32/cpu-avx2", "the engine torch has no numerics classes"),
        ("vllm-0.32.0/bfloat16/tpu", "device: String should match"),
        ("vllm-0.32.0/bfloat16/sm_9", "device: String should match"),
        (f"vllm-{'1' * 17}/bfloat16/sm_90", "version: String should match"),
    ],
)
def test_other_names_are_refused(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        Arithmetic.parse(name)


def test_a_pair_keeps_the_bytes_of_older_calibrations() -> None:
    assert Arithmetic.parse(PAIR).model_dump(mode="json") == {"engine": "vllm", "dtype": "bfloat16"}


def file_of(name: str) -> RolloutFile:
    file = read_rollout_bytes(trial_file(), limits=TRIAL_LIMITS)
    return RolloutFile(replace(file.header, arithmetic=Arithmetic.parse(name)), file.samples)


@pytest.mark.parametrize("name", NAMES)
def test_a_files_header_keeps_the_name(name: str, tmp_path: Path) -> None:
    file = file_of(name)
    write_rollouts(tmp_path / "file", file)
    assert read_rollouts(tmp_path / "file").header == file.header
    assert unpack(pack(file), limits=ReadLimits()).header == file.header


def test_only_a_class_changes_the_engines_column() -> None:
    columns = {name: table_of(file_of(name)).column("engine")[0].as_py() for name in (PAIR, CLASS)}
    assert columns == {PAIR: "vllm", CLASS: CLASS}


def test_columns_that_contradict_each_other_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rollouts.files.schema._shared_of",
        lambda header: {
            **{name: getattr(header, name) for name in ("run", "step", "index", "node", "checkpoint")},
            "environment": "none",
            "environment_version": "1",
            "engine": CLASS,
            "dtype": "float32",
        },
    )
    write_rollouts(tmp_path / "file", file_of(CLASS))
    with pytest.raises(BadRolloutFile, match="the column dtype has 'float32'"):
        read_rollouts(tmp_path / "file")


def test_a_recipe_names_classes_beside_pairs() -> None:
    recipe = Recipe.model_validate(RECIPE.model_dump() | {"arithmetic": [CLASS, "torch/float32"]})
    assert recipe.taken == (CLASS, "torch/float32")
    assert recipe.takes(Arithmetic.parse(CLASS))
    assert not recipe.takes(Arithmetic.parse(CLASS).pair), "a class does not accept the whole engine and type"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["vllm-0.32.0/bfloat16/cpu-avx9!"], "use torch/float32, torch/bfloat16, vllm/float32, vllm/bfloat16, or a"),
        ([CLASS, CLASS], "is named twice"),
    ],
)
def test_a_recipe_with_a_bad_class_says_what_is_allowed(names: list[str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Recipe.model_validate(RECIPE.model_dump() | {"arithmetic": names})


class Computing:
    """An engine that only names what it computes."""

    name, dtype = EngineName.VLLM, Dtype.BFLOAT16

    def __init__(self, *names: str) -> None:
        self.arithmetics = tuple(map(Arithmetic.parse, names))


@pytest.mark.parametrize(
    ("taken", "paid"),
    [((CLASS,), CLASS), ((PAIR,), PAIR), ((PAIR, CLASS), CLASS), ((), CLASS)],
)
def test_a_task_names_its_class_if_the_recipe_accepts_it(taken: tuple[str, ...], paid: str) -> None:
    engine: Engine = Computing(CLASS, PAIR)  # type: ignore[assignment]  # only the names are read
    assert str(paid_arithmetic(taken, engine)) == paid


def test_a_task_of_another_class_is_told_which_one_is_paid() -> None:
    engine: Engine = Computing("vllm-0.32.0/bfloat16/cpu-avx512_bf16", PAIR)  # type: ignore[assignment]
    with pytest.raises(ArithmeticNotTaken) as refused:
        paid_arithmetic(("vllm-0.32.0/bfloat16/cpu-avx2",), engine)
    assert "generates with vllm-0.32.0/bfloat16/cpu-avx512_bf16 or vllm/bfloat16" in refused.value.detail
    assert "--engine vllm --dtype bfloat16 --numerics cpu-avx2` and vLLM 0.32.0" in refused.value.hint
