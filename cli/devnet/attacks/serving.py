"""Attacks of a node that serves: it answers a gateway's clients with other weights than the version's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.devnet.attacks import weights
from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from rollouts.engines.interface import SessionEngine
from rollouts.models.facts import read_model
from rollouts.task.serving_loop import ServingTask


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherModel:
    """The weights of an attack.

    Args:
        change: Makes them from the version's tensors and the number of its layers.
        halved: Whether the model has half of the layers.
    """

    change: Callable[[weights.Tensors, int], weights.Tensors]
    halved: bool = False


SERVING: Mapping[str, OtherModel] = {
    "another-model": OtherModel(change=lambda tensors, _: weights.another(tensors)),
    "int4": OtherModel(change=lambda tensors, _: weights.quantised(4)(tensors)),
    "int8": OtherModel(change=lambda tensors, _: weights.quantised(8)(tensors)),
    "smaller-model": OtherModel(change=lambda tensors, layers: weights.first_layers(tensors, layers // 2), halved=True),
}
"""The attacks by name; `cli.devnet.options.SERVING_CHEATS` lists the same names."""


class OtherWeightsEngine:
    """An engine that loads changed weights, and claims to have loaded the version.

    Args:
        engine: The real engine, to which everything else is passed on.
        model: The changed weights.
        room: Folder for the changed weights.
    """

    def __init__(self, engine: SessionEngine, model: OtherModel, *, room: Path) -> None:
        self._engine = engine
        self._model = model
        self._room = room

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the engine has
        return getattr(self._engine, name)

    def load(self, folder: Path, *, version: Digest) -> None:
        """Loads the changed weights of a version."""
        layers = read_model(folder).config.get("num_hidden_layers", 0)
        if not isinstance(layers, int) or layers < 2:
            raise InvalidInput(f"can't halve a model of {layers} layers")
        changed = self._room / version[:18]
        if not changed.exists():
            self._room.mkdir(parents=True, exist_ok=True)
            config = {"num_hidden_layers": layers // 2} if self._model.halved else {}
            weights.write_changed(folder, changed, lambda tensors: self._model.change(tensors, layers), **config)
        self._engine.load(changed, version=version)


def serving_attack(name: str, data: Path) -> Callable[..., ServingTask]:
    """Returns a factory of serving tasks that run an attack.

    Args:
        name: Name of the attack.
        data: The task's data volume.

    Raises:
        InvalidInput: No attack on serving has this name.
    """
    if name not in SERVING:
        raise InvalidInput(f"there is no attack {name} on serving", hint=f"one of: {', '.join(sorted(SERVING))}")

    def make(**parts: Any) -> ServingTask:  # noqa: ANN401 - the real task's own arguments
        engine: Any = OtherWeightsEngine(parts.pop("engine"), SERVING[name], room=data / "cheats")
        return ServingTask(engine=engine, **parts)

    return make
