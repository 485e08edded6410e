"""Attacks with other weights than the version's: smaller, quantised, older, or another model's.

An attack writes the changed weights of a version once, as a folder that any engine can load.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.toolkit import AttackToolkit
from protocol.errors import InvalidInput
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile
from rollouts.models.facts import CONFIG_FILE, SINGLE_WEIGHTS, WEIGHTS_INDEX, read_model
from rollouts.models.policy import read_tensor

Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], Tensors]

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_STRANGE = 0.1
"""Standard deviation of the noise that `another` adds to a tensor, relative to the tensor's own."""


class OtherWeights(Trick):
    """Generates with changed weights.

    Args:
        name: Folder name of the changed weights.
        change: Makes the changed weights from the version's.
    """

    def __init__(self, name: str, change: Change) -> None:
        self._name = name
        self._change = change

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the file that the changed weights generate."""
        return toolkit.file(grant, weights=written(toolkit, self._name, self._change))


class Smaller(Trick):
    """Generates with half of the layers, then computes proofs and log-probabilities with the version itself."""

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the small model's tokens with the right model's proofs."""
        layers = toolkit.model.config.get("num_hidden_layers", 0)
        if not isinstance(layers, int) or layers < 2:
            raise InvalidInput(f"can't halve a model of {layers} layers")
        kept = layers // 2
        small = written(toolkit, "smaller", lambda tensors: first_layers(tensors, kept), num_hidden_layers=kept)
        return toolkit.proven(toolkit.file(grant, weights=small))


class Earlier(Trick):
    """Generates with an old version, which saves downloads; honest until an old version exists.

    Args:
        back: Number of versions to go back.
    """

    def __init__(self, back: int) -> None:
        self._back = back

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the old version's file."""
        old = toolkit.history[-self._back] if len(toolkit.history) >= self._back else None
        return toolkit.file(grant, weights=old)


def another(tensors: Tensors) -> Tensors:
    """Returns the weights with noise, as a stand-in for another model of the same shape.

    The noise is small enough that the model's answers still make sense.
    """
    return nudged(tensors, by=lambda weight: _STRANGE * float(weight.std()) if weight.numel() > 1 else 0.0)


def quantised(bits: int) -> Change:
    """Returns a function that quantises weights to `bits` bits, with one scale per row as in fast kernels."""

    def change(tensors: Tensors) -> Tensors:
        return {name: _rounded(weight, bits) if weight.ndim == 2 else weight for name, weight in tensors.items()}

    return change


def nudged(tensors: Tensors, *, by: Callable[[torch.Tensor], float], seed: int = 7) -> Tensors:
    """Returns weights with Gaussian noise; `by` returns its standard deviation for each tensor."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: weight + by(weight) * torch.randn(weight.shape, generator=generator)
        for name, weight in sorted(tensors.items())
    }


def written(toolkit: AttackToolkit, name: str, change: Change, **config: object) -> Path:
    """Returns the folder of changed weights.

    If the folder does not exist, the function makes it, and removes the folders of earlier versions.
    """
    folder = toolkit.room / f"{name}-{toolkit.folder.name[:18]}"
    if not folder.exists():
        for old in toolkit.room.glob(f"{name}-*"):
            shutil.rmtree(old)
        write_changed(toolkit.folder, folder, change, **config)
    return folder


def write_changed(version: Path, folder: Path, change: Change, **config: object) -> None:
    """Writes a copy of a version with other weights, in float32, and optionally another config."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(version, partial, ignore=shutil.ignore_patterns("*.safetensors", WEIGHTS_INDEX))
    tensors = {name: read_tensor(stored).float() for name, stored in read_model(version).tensors.items()}
    changed = {name: weight.contiguous() for name, weight in change(tensors).items()}
    save_file(changed, partial / SINGLE_WEIGHTS, metadata={"format": "pt"})
    if config:
        _rewrite(partial / CONFIG_FILE, config)
    partial.rename(folder)


def _rewrite(path: Path, changes: Mapping[str, object]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(changes)))


def _rounded(weight: torch.Tensor, bits: int) -> torch.Tensor:
    scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
    return torch.mul((weight / scale).round(), scale)


def first_layers(tensors: Tensors, kept: int) -> Tensors:
    """Returns the weights without the layers after the first `kept`."""

    def stays(name: str) -> bool:
        found = _LAYER.search(name)
        return found is None or int(found[1]) < kept

    return {name: weight for name, weight in tensors.items() if stays(name)}
