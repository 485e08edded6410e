"""Every loader refuses a model without causal full attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rollouts.errors import BadVersionFolder
from rollouts.models.facts import read_model
from rollouts.models.policy import check_whole, load_policy
from rollouts.precision import Dtype
from tests.kit.tiny_model import rewrite_json, tiny_folder
from trainer.models.trainable import open_model

CPU = torch.device("cpu")
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 48, "mamba_d_state": 8, "mamba_n_groups": 1}
RECURRENT, NO_POSITIONS = "layers with a recurrent state", "it does not accept token positions"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mamba2": ({"num_heads": 4, "head_dim": 48, "n_groups": 1, "state_size": 8}, RECURRENT),
    "jamba": ({"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 4}, RECURRENT),
    "bamba": ({"attn_layer_indices": [1], **MAMBA}, RECURRENT),
    "falcon_h1": ({"mamba_d_ssm": 192, **MAMBA}, RECURRENT),
    "zamba2": (
        {"layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 4, "mamba_ngroups": 1, "use_mem_rope": False}
        | {"num_mem_blocks": 1, "mamba_d_state": 8, "attention_hidden_size": 192, "attention_head_dim": 48},
        RECURRENT,
    ),
    "recurrent_gemma": ({"lru_width": 96, "block_types": ["recurrent", "attention"]}, RECURRENT),
    "bloom": ({"n_layer": 2, "n_head": 4}, NO_POSITIONS),
    "falcon": ({}, "does not compute its attention by scaled dot product with any mask"),
    "bert": ({}, "some of its attention sees later tokens"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_without_causal_full_attention_are_refused(kind: str, tmp_path: Path) -> None:
    config, words = REFUSED[kind]
    folder = tiny_folder(tmp_path, kind=kind, **config)
    with pytest.raises(BadVersionFolder, match=f"of type {kind}, .*{words}"):
        load_policy(folder, dtype=Dtype.FLOAT32, device=CPU)
    with pytest.raises(BadVersionFolder, match=words):
        check_whole(read_model(folder))
    with pytest.raises(BadVersionFolder, match=words):
        open_model(folder, device=CPU)


def test_a_window_or_layer_types_set_only_by_the_model_types_defaults_are_refused(tmp_path: Path) -> None:
    """The folder's config does not contain them; transformers fills in its defaults."""
    windowed = tiny_folder(tmp_path / "windowed", kind="mistral", sliding_window=None)
    load_policy(windowed, dtype=Dtype.FLOAT32, device=CPU)
    rewrite_json(windowed / "config.json", sliding_window=None)
    with pytest.raises(BadVersionFolder, match="attend to the last 4096 tokens only"):
        load_policy(windowed, dtype=Dtype.FLOAT32, device=CPU)
    mixed = tiny_folder(tmp_path / "mixed", kind="lfm2", full_attn_idxs=[1])
    rewrite_json(mixed / "config.json", layer_types=None, full_attn_idxs=[1])
    with pytest.raises(BadVersionFolder, match="layers other than full attention: conv"):
        load_policy(mixed, dtype=Dtype.FLOAT32, device=CPU)
