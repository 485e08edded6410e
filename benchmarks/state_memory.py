"""Measures memory and CPU of writing a state, in pieces and with the library's writer: `[--megabytes N]`.

Each way runs in a separate process, because the peak of a process never falls.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save

from benchmarks.ending import end_in_order
from trainer.saving.files import write_whole
from trainer.saving.tensor_file import tensor_file

TENSORS = 16
WAYS = ("library", "pieces")


def main() -> None:
    """Prints a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--way", choices=WAYS)
    options = parser.parse_args()
    if options.way:
        _write(options.way, options.megabytes)
        return
    for way in WAYS:
        command = [sys.executable, "-m", "benchmarks.state_memory", "--way", way, "--megabytes", str(options.megabytes)]
        subprocess.run(command, check=True)


def _write(way: str, megabytes: int) -> None:
    tensors = {str(number): torch.ones(megabytes * 250_000 // TENSORS) for number in range(TENSORS)}
    before, since = _peak(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        if way == "library":
            write_whole(path, save(tensors, metadata={}))
        else:
            write_whole(path, tensor_file(tensors, metadata={}))
    print(f"{way}: {_peak() - before:.0f} MB more, {time.process_time() - since:.2f} CPU s, for {megabytes} MB")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    end_in_order()
    main()
