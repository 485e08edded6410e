"""`python -m trainer.run.evaluation_worker JSON`: evaluates the versions named on standard input.

Reads lines such as `{"version": 3, "folder": "policies/3"}`, writes one line of JSON with the result of each, and ends
at end of input.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import MusterError
from rollouts.engines.interface import Engine
from rollouts.engines.opening import open_engine
from rollouts.environments import load_environment
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from rollouts.recipe import read_recipe
from trainer.evaluator import Evaluator, held_out_prompts

_NICENESS = 5
"""Gives this process a lower priority than training, for machines with few cores."""


def main() -> None:
    """Evaluates versions until the end of input."""
    torch.set_num_threads(1)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    options: Mapping[str, Any] = json.loads(sys.argv[1])
    engine = open_engine(EngineName.TORCH, dtype=Dtype(options["dtype"]), device=options["device"])
    evaluator: Evaluator | None = None
    try:
        for line in sys.stdin:
            folder = Path(json.loads(line)["folder"])
            try:
                evaluator = evaluator or _evaluator(folder, options)
                answer = _evaluate(folder, evaluator, engine)
            except (MusterError, OSError) as error:
                answer = {"error": error.detail if isinstance(error, MusterError) else str(error)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        engine.close()


def _evaluator(folder: Path, options: Mapping[str, Any]) -> Evaluator:
    recipe = read_recipe(folder)
    chosen = recipe.environment
    environment = load_environment(chosen.name, version=chosen.version, options=chosen.options)
    return Evaluator(
        environment=environment,
        recipe=recipe,
        tokenizer=FolderTokenizer(folder),
        indices=held_out_prompts(environment, recipe, count=options["prompts"]),
        samples=options["samples"],
    )


def _evaluate(folder: Path, evaluator: Evaluator, engine: Engine) -> dict[str, Any]:
    since = time.perf_counter()
    engine.load(folder, version=version_digest(folder_files(folder)))
    found = asdict(evaluator.evaluate(engine))
    return {**found, "seconds": time.perf_counter() - since}


if __name__ == "__main__":
    main()
