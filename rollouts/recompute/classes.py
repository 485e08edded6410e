"""Numerics classes that this machine can recompute.

python -m rollouts.recompute.classes    # prints the classes as a JSON list; run it with vLLM's Python interpreter
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import timedelta
from pathlib import Path

import torch

from protocol.errors import InvalidInput
from rollouts.engines.vllm.cpu_kernels import reproducible_classes
from rollouts.engines.vllm.numerics import arithmetic_of, gpu_class
from rollouts.models.devices import find_device
from rollouts.precision import Arithmetic, Dtype
from rollouts.recompute.errors import starting
from rollouts.recompute.place import VllmPlace
from rollouts.recompute.reference import prove, recording_of
from rollouts.recompute.vllm_process import VllmProcess

_WITHIN = timedelta(minutes=2)
_ROOT = Path(__file__).parents[2]


def own_classes(device: torch.device) -> list[Arithmetic]:
    """Returns the classes that vLLM in this environment can recompute on a device.

    These are the machine's own class and, on a CPU, the lower classes. Classes without a recording in this release are
    left out, because a machine can't prove without a recording that it reproduces a class.

    Raises:
        NotFound: vLLM is not installed in this environment.
        InvalidInput: The device has no class.
    """
    devices = (gpu_class(device),) if device.type != "cpu" else reproducible_classes()
    if not devices:
        raise InvalidInput("this machine's processor has no numerics class", hint="classes need x86-64 with AVX2")
    every = [arithmetic_of(dtype, name) for dtype in reversed(Dtype) for name in devices]
    return [one for one in every if recording_of(one) is not None]


def check_class(place: VllmPlace, arithmetic: Arithmetic) -> None:
    """Lets a new process of a vLLM installation recompute the recording of a class.

    Raises:
        ClassNotReproduced: The installation does not compute in the class on this machine.
        EngineFailed: vLLM failed.
        OutOfMemory: vLLM does not fit into memory.
    """
    with starting(arithmetic):
        process = VllmProcess(place, arithmetic)
    with process:
        prove(process)


def main() -> None:
    """Prints the names of the classes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="torch device; default: an accelerator if there is one, else the CPU")
    names = [str(one) for one in own_classes(find_device(parser.parse_args().device))]
    sys.stdout.write(json.dumps(names) + "\n")


if __name__ == "__main__":
    main()
