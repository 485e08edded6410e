"""An engine is opened by the name in a lease or a setting."""

from __future__ import annotations

import sys

import pytest

from protocol.errors import InvalidInput, NotFound
from rollouts.engines.opening import open_engine
from rollouts.precision import Dtype, EngineName


def test_the_torch_engine_is_opened_by_its_name() -> None:
    engine = open_engine(EngineName("torch"), dtype=Dtype.BFLOAT16, device="cpu")
    assert (engine.name, engine.dtype, engine.version) == (EngineName.TORCH, Dtype.BFLOAT16, None)


def test_a_missing_engine_is_reported_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rollouts.engines.vllm", None)
    monkeypatch.setitem(sys.modules, "rollouts.engines.vllm.engine", None)
    with pytest.raises(NotFound, match="the vllm engine can't be loaded") as raised:
        open_engine(EngineName.VLLM, dtype=Dtype.BFLOAT16)
    assert "muster-network[vllm]" in raised.value.hint


def test_a_device_that_torch_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'gpu' is not a device"):
        open_engine(EngineName.TORCH, dtype=Dtype.FLOAT32, device="gpu")
