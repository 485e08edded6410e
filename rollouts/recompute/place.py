"""A vLLM installation on this machine, and its numerics classes. This module does not load torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from protocol.errors import NotFound
from protocol.runtime.extras import installation
from rollouts.errors import EngineFailed
from rollouts.precision import Arithmetic

ROOT = Path(__file__).parents[2]
"""Folder that holds this code's packages."""
MODEL_FOLDERS = "muster-reference-"
"""Beginning of the names of the reference model's temporary folders."""

_CLASSES_WITHIN = timedelta(minutes=2)
_PASSED_ON = frozenset({"PATH", "HOME", "LANG", "TMPDIR", "TZ", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"})
"""Environment variables that the process inherits. Other variables may hold keys, or change the process's results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlace:
    """A vLLM installation on this machine, with the device and threads that it uses.

    Args:
        python: Python interpreter of an environment with vLLM; None for this process's own environment.
        device: Torch's name of the device; None for an accelerator if there is one, else the CPU.
        threads: Threads of the process on a CPU.
    """

    python: Path | None = None
    device: str | None = None
    threads: int = 1

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of processes at this place."""
        passed_on = {name: value for name, value in os.environ.items() if name in _PASSED_ON}
        return passed_on | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(self.threads)}

    def interpreter(self) -> Path:
        """Returns the interpreter.

        Raises:
            NotFound: The interpreter does not exist, or there is no vLLM in this process's environment.
        """
        if self.python is not None:
            if not self.python.is_file():
                raise NotFound(f"there is no Python interpreter {self.python}", hint="correct the path")
            return self.python
        if find_spec("vllm") is None:
            raise NotFound(
                "vLLM is not installed in this environment",
                hint=f"{installation('vllm')}, or name the interpreter of an environment that has vLLM",
            )
        return Path(sys.executable)


def classes_at(place: VllmPlace) -> list[Arithmetic]:
    """Returns the classes that a vLLM installation can recompute.

    The function runs the installation's interpreter in a process of its own.

    Raises:
        NotFound: vLLM is not installed at this place.
        EngineFailed: The interpreter failed.
    """
    command = [str(place.interpreter()), "-m", "rollouts.recompute.classes"]
    command += [] if place.device is None else ["--device", place.device]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=place.environment(),
            capture_output=True,
            timeout=_CLASSES_WITHIN.total_seconds(),
            check=False,
            text=True,
        )
        if done.returncode:
            raise EngineFailed(f"{command[0]} found no classes: {(done.stderr.splitlines() or [''])[-1][:300]}")
        return [Arithmetic.parse(name) for name in json.loads(done.stdout)]
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise EngineFailed(f"{command[0]} found no classes: {error}") from error
