"""Weights in memory: complete, of one version, and replaced in place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rollouts.errors import BadVersionFolder, OutOfMemory
from rollouts.models import policy as policy_module
from rollouts.models.facts import ModelFacts, read_model
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import Dtype
from tests.kit.tiny_model import rewrite_json, tiny_folder

CPU = torch.device("cpu")
TOKENS = torch.tensor([[7, 21, 30, 5]])


def load(folder: Path, *, dtype: Dtype = Dtype.FLOAT32, instead_of: Policy | None = None) -> Policy:
    return load_policy(folder, dtype=dtype, device=CPU, instead_of=instead_of)


def logits(policy: Policy) -> torch.Tensor:
    return policy.states_and_logits(TOKENS)[1]


@pytest.fixture
def folder(qwen2: Path, tmp_path: Path) -> Path:
    return shutil.copytree(qwen2, tmp_path / "model")


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_the_states_are_the_input_of_the_output_layer(kind: str, request: pytest.FixtureRequest) -> None:
    policy = load(request.getfixturevalue(kind))
    states, scores = policy.states_and_logits(TOKENS)
    weights = load_file(policy.facts.folder / "model.safetensors")
    output_layer = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    assert tuple(states.shape) == (1, 4, 96)
    torch.testing.assert_close(states @ output_layer.T, scores)


def test_states_and_logits_are_computed_only_at_the_requested_positions(qwen2: Path) -> None:
    policy = load(qwen2)
    states, scores = policy.states_and_logits(TOKENS, keep=torch.tensor([1, 3]))
    assert (states.shape[1], scores.shape[1]) == (2, 2)
    torch.testing.assert_close(scores, logits(policy)[:, [1, 3]])


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_a_version_of_the_same_shape_is_loaded_in_place(kind: str, stored: torch.dtype, tmp_path: Path) -> None:
    policy = load(tiny_folder(tmp_path / "one", kind=kind))
    other = tiny_folder(tmp_path / "two", kind=kind, seed=5, dtype=stored)
    assert load(other, instead_of=policy) is policy
    assert torch.equal(logits(policy), logits(load(other)))
    assert policy.facts.folder == other


def test_a_version_of_another_shape_creates_a_new_policy(qwen2: Path, llama: Path) -> None:
    policy = load(qwen2)
    assert load(llama, instead_of=policy) is not policy


def test_weights_are_copied_so_that_later_changes_to_the_folder_have_no_effect(folder: Path) -> None:
    policy = load(folder)
    before = logits(policy)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(2000)
    assert torch.equal(logits(policy), before)


def test_a_folder_that_changes_during_loading_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_and_change(path: Path) -> ModelFacts:
        facts = real(path)
        shutil.copy(path / "model.safetensors", path / "copy")
        (path / "copy").rename(path / "model.safetensors")
        return facts

    real = read_model
    monkeypatch.setattr(policy_module, "read_model", read_and_change)
    with pytest.raises(BadVersionFolder, match="changed while it was being read"):
        load(folder)


def test_weights_truncated_during_an_update_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file were mapped, truncating it would end the process."""

    def read_and_cut(path: Path) -> ModelFacts:
        facts = read_model(path)
        with (path / "model.safetensors").open("r+b") as file:
            file.truncate(5000)
        return facts

    policy = load(folder)
    monkeypatch.setattr(policy_module, "read_model", read_and_cut)
    with pytest.raises(BadVersionFolder, match=r"model\.safetensors was truncated while it was being read"):
        load(folder, instead_of=policy)


def test_weights_that_do_not_match_the_config_are_refused_and_not_initialised_randomly(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    taken = weights.pop("model.norm.weight")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(BadVersionFolder, match=r"missing keys model\.norm\.weight"):
        load(folder)
    save_file(weights | {"model.norm.weight": taken, "model.extra": taken.clone()}, folder / "model.safetensors")
    with pytest.raises(BadVersionFolder, match=r"unexpected keys model\.extra"):
        load(folder)
    save_file(weights | {"model.norm.weight": taken[:5].clone()}, folder / "model.safetensors")
    with pytest.raises(BadVersionFolder, match=r"model\.norm|mismatched"):
        load(folder)


def test_an_unknown_architecture_is_refused(folder: Path) -> None:
    rewrite_json(folder / "config.json", model_type="never-heard-of", architectures=["NeverHeardOf"])
    with pytest.raises(BadVersionFolder, match="no model can be loaded from"):
        load(folder)


def test_weights_that_do_not_fit_in_memory_are_refused_with_both_sizes(
    qwen2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_module, "available_memory", lambda device: 500_000)
    with pytest.raises(OutOfMemory, match=r"172,896 parameters in float32 need 0\.7 MB, but cpu has 0\.5 MB"):
        load(qwen2)
    load(qwen2, dtype=Dtype.BFLOAT16)
