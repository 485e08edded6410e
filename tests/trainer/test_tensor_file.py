"""Files written in pieces are readable by the safetensors library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load

from trainer.saving.files import write_whole
from trainer.saving.tensor_file import tensor_file

TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
SHAPES = st.lists(st.integers(0, 4), max_size=3)
NAMES = st.text(min_size=1).filter(lambda name: name != "__metadata__")


@given(st.dictionaries(NAMES, st.tuples(st.sampled_from(TYPES), SHAPES)))
def test_the_safetensors_library_reads_the_same_tensors(wanted: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    tensors = {name: (torch.rand(shape) * 9).to(dtype) for name, (dtype, shape) in wanted.items()}
    found = load(b"".join(tensor_file(tensors, metadata={})))
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


def test_a_file_keeps_its_metadata_and_non_contiguous_tensors(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).reshape(3, 4).T
    write_whole(tmp_path / "state", tensor_file({"a": tensor}, metadata={"muster": "{}"}))
    with safe_open(tmp_path / "state", framework="pt") as file:
        assert file.metadata() == {"muster": "{}"}
        assert torch.equal(file.get_tensor("a"), tensor)


def test_writing_makes_no_second_copy_in_memory() -> None:
    tensor = torch.zeros(1000)
    *_, piece = tensor_file({"a": tensor}, metadata={})
    tensor[0] = 1.0
    assert bytes(piece)[:4] == b"\0\0\x80\x3f", "the view uses the tensor's own memory"


def test_a_dtype_missing_in_the_format_is_refused() -> None:
    with pytest.raises(KeyError):
        list(tensor_file({"a": torch.zeros(1, dtype=torch.complex64)}, metadata={}))
