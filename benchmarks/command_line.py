"""Measures the CPU seconds of quick commands of `muster`, with all processes that they start.

    python -m benchmarks.command_line [--times N] [CHECKOUT ...]

Commands of this checkout and of others, given as folders, run in turns, so that all are measured at the same speed of
the machine. `pool nodes` asks an orchestrator with 100 nodes, Redis real. Modules are compiled before, as in an
installation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer, decoders, models

from benchmarks.decoding import cpu_seconds, file_of
from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import node_keys, orchestrator_process, redis_server, seed
from protocol.http.tokens import TokenSetting, hash_token, new_token
from protocol.identity.scopes import Scope

ROOT = Path(__file__).parents[1]
NODES = 100
ANSWERS, TOKENS, VOCABULARY = 64, 8, 32_000


def main() -> None:
    """Measures and prints a row per command, with median and minimum of each checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument("checkouts", nargs="*", type=Path)
    options = parser.parse_args()
    checkouts = [ROOT, *(each.resolve() for each in options.checkouts)]
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, running_pool(Path(folder)):
        rollout_files(Path(folder))
        print(f"{'CPU s: median (minimum)':<36}" + "".join(f" {each!s:>28}" for each in checkouts))
        for name, words, variables in commands(Path(folder)):
            taken: dict[Path, list[float]] = {each: [] for each in checkouts}
            for turn in range(options.times + 1):
                for checkout in checkouts:
                    seconds = run(checkout, words, variables, Path(folder))
                    if turn:  # the first one compiles the modules, or makes the index of completions
                        taken[checkout].append(seconds)
            cells = (f"{statistics.median(each):.3f} ({min(each):.3f})" for each in taken.values())
            print(f"{name:<36}" + "".join(f" {cell:>28}" for cell in cells))


@contextmanager
def running_pool(folder: Path) -> Iterator[None]:
    """Runs an orchestrator with nodes; writes the configuration of the pool's owner."""
    token = new_token()
    setting = TokenSetting(name="owner", scope=Scope.READ, hash=hash_token(token))
    with redis_server() as url:
        seed(url, [key.address for key in node_keys(NODES)])
        with orchestrator_process(url, tokens=(setting,)) as (port, _):
            (folder / "token").write_text(token)
            configuration = f'[pool]\norchestrator = "http://127.0.0.1:{port}"\ntoken_file = "token"\n'
            (folder / "muster.toml").write_text(configuration)
            yield


def rollout_files(folder: Path) -> None:
    """Writes a rollout file, and a version's folder with a tokenizer."""
    (folder / "rollouts.parquet").write_bytes(file_of(ANSWERS, TOKENS))
    tokenizer = Tokenizer(models.WordLevel({f" word{token}": token for token in range(VOCABULARY)}, unk_token=" word0"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))


def commands(folder: Path) -> list[tuple[str, list[str], dict[str, str]]]:
    """Returns the name, the words and the environment of each measured command."""
    show = ["rollouts", "show", str(folder / "rollouts.parquet")]
    completion = {"_MUSTER_COMPLETE": "complete_bash", "COMP_WORDS": "muster pool no", "COMP_CWORD": "2"}
    return [
        ("version", ["version"], {}),
        (f"pool nodes, {NODES} nodes", ["--config", str(folder / "muster.toml"), "pool", "nodes"], {}),
        ("rollouts show --ids", [*show, "--ids"], {}),
        ("rollouts show --model", [*show, "--model", str(folder)], {}),
        ("completion of a word", [], completion),
    ]


def run(checkout: Path, words: list[str], variables: dict[str, str], folder: Path) -> float:
    """Runs a command of a checkout; returns its CPU seconds."""
    cache = {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "XDG_CACHE_HOME": str(folder / "cache" / checkout.name)}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = cpu_seconds()
    subprocess.run(
        [sys.executable, "-m", "muster_network", *words],
        cwd=checkout,
        env=environment | cache | variables,
        capture_output=True,
        check=True,
    )
    return cpu_seconds() - before


if __name__ == "__main__":
    end_in_order()
    main()
