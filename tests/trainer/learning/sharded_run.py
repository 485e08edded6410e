"""What each of two processes does in `test_sharding.py`, under torchrun: `FOLDER_OF_MODEL FOLDER_FOR_RESULTS`."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from protocol.errors import InvalidInput
from tests.kit.training_groups import fresh, made_groups, with_own_logprobs
from trainer.learning.groups import TrainingGroup
from trainer.learning.learner import Learner, LearnerState
from trainer.learning.settings import LearningSettings
from trainer.learning.sharding import make_mesh

RUNS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "kept-near": {"algorithm": {"name": "grpo", "kl": 0.1}},
    "recomputed": {"checkpoint_activations": True, "layout": "packed"},
    "muon": {"optimiser": {"kind": "muon"}},
}
STEPS, RESUMED_AT = 3, 2


def settings_of(run: str) -> LearningSettings:
    """Rows so short and few at once that the processes have unequal numbers of micro-batches."""
    optimiser = {"learning_rate": 1e-3, "warm_up_steps": 0} | RUNS[run].get("optimiser", {})
    return LearningSettings.model_validate({"row_tokens": 20, "rows_at_once": 2} | RUNS[run] | {"optimiser": optimiser})


def batches(folder: Path) -> list[list[TrainingGroup]]:
    """One batch for each step."""
    model = fresh(folder)
    return [with_own_logprobs(model, made_groups(3, seed=step), off=0.3) for step in range(STEPS)]


def results(folder: Path, run: str, learner: Learner, *, first: int = 0) -> dict[str, Any]:
    """Learns the batches; what the steps reported, without what clocks say."""
    done = [learner.learn(groups, step=step) for step, groups in enumerate(batches(folder)) if step >= first]
    return {"run": run, "steps": [dataclasses.asdict(step) | {"seconds": 0} for step in done]}


def one_without_a_number(folder: Path, mesh: DeviceMesh) -> dict[str, Any]:
    """Steps of which a gradient is no number: on all processes, then on the last one only."""
    learner = Learner(fresh(folder), settings_of("adamw"), mesh=mesh)
    groups = batches(folder)[0]
    first = groups[0].samples[0]
    spoilt = dataclasses.replace(first, logprobs=first.logprobs * np.float32("nan"))
    bad = dataclasses.replace(groups[0], samples=(spoilt, *groups[0].samples[1:]))
    everywhere = learner.learn([bad, *groups[1:]], step=0).bad
    if mesh.get_rank() == 1:
        own = learner._gradient_norm
        otherwise: Callable[[int], float] = lambda count: own(count) * math.inf  # noqa: E731
        setattr(learner, "_gradient_norm", otherwise)  # noqa: B010 - mypy knows it for a method
    here = learner.learn(groups, step=1).bad
    moved = {name: weight.sum().item() for name, weight in learner.weights().items()}
    return {"everywhere": everywhere, "here": here, "skipped": learner.skipped, "moved": moved}


def main() -> None:
    """Does all runs, and goes on from the state that one process left."""
    torch.set_num_threads(1)
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    mesh = make_mesh("cpu")
    found: list[dict[str, Any]] = []
    for run in RUNS:
        learner = Learner(fresh(folder), settings_of(run), reference=fresh(folder), mesh=mesh)
        found.append(results(folder, run, learner))
        weights = learner.weights()
        if mesh.get_rank() == 0:
            save_file(weights, out / f"{run}.safetensors")
    learner = Learner(fresh(folder), settings_of("adamw"), reference=fresh(folder), mesh=mesh)
    learner.restore(
        LearnerState(tensors=load_file(out / "state.safetensors"), facts={"counts": {"bad": 0, "bad_in_a_row": 0}})
    )
    found.append(results(folder, "resumed", learner, first=RESUMED_AT))
    state = learner.state()
    if mesh.get_rank() == 0:
        save_file(dict(state.tensors), out / "resumed.safetensors")
    try:
        learner.learn(made_groups(1, seed=mesh.get_rank()), step=0)
    except InvalidInput as error:
        found.append({"run": "different", "error": str(error)})
    found.append({"run": "no-number", **one_without_a_number(folder, mesh)})
    (out / f"{mesh.get_rank()}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
