"""Compares a run that is killed ten times with an uninterrupted one; `python -m benchmarks.survival`.

Real trainer processes with a real chain, Redis, orchestrator and store. They are killed by `kill -9` at moments drawn
from a seed, scaled to the machine's speed, while they start and while they work; the same command resumes them. For
each kill: the lifetime of the process, its activity, the number of steps to be learned again, and the time until the
next process waited for rollouts again (including the start of Python and torch).

At the end the same accepted files are taken from the store and learned batch by batch in one uninterrupted process.
Both must be equal: each version's digest, weights, optimiser averages and random state, bit by bit.
`--kills 10 --steps 20 --seed 1` are the defaults.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

import redis as sync_redis
import structlog
import torch
import uvicorn
from rich.console import Console
from rich.table import Table
from safetensors import safe_open

from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import redis_server
from ledger.devchain import ChainKind, start_chain
from tests.kit.chain_controls import ChainControls
from tests.kit.run_on_chain import join_by_relay, orchestrating
from tests.kit.trained_pool import TrainedPool, base_folder
from tests.kit.world import Founded, World, found
from trainer.run.state.folder import STATE_FILE

GROUPS = 6
WIDTH, LAYERS = 256, 4
"""About two million weights, so that learning, writing and saving take long enough to be interrupted by a kill."""
KILLED_WHILE_STARTING = 0.2
FIRST_START, FIRST_STEP = 10.0, 2.0
"""Initial estimates in seconds, before any start or step was measured."""
STEPS_OF_A_LIFE = 3.0
"""A kill comes at most this number of steps after a process began to wait for rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One trainer process, from its start to its end."""

    seconds: float
    starting: float | None
    """Seconds until it waited for rollouts; None if it was killed earlier."""
    killed: bool


class Trainer:
    """A trainer in a separate process, which can be killed and started again.

    Args:
        pool: The pool that it trains for.
        url: URL of the orchestrator.
        steps: Total number of steps.
    """

    def __init__(self, pool: TrainedPool, *, url: str, steps: int) -> None:
        self._pool = pool
        self._told = pool.folder / "settings.json"
        settings = pool.settings(orchestrator=url, steps=steps, groups_per_step=GROUPS, keep_versions=99)
        self._told.write_text(json.dumps(settings.model_dump(mode="json") | {"chain_url": pool.world.url}))

    async def live(self, kill_after: float | None = None, *, starting: bool = False) -> Life:
        """Starts the process and waits for its end, or kills it.

        `kill_after` counts seconds from its start (`starting`) or from its first wait for rollouts.
        """
        begun, since = len(self._pool.progress("started")), time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.trainer.run.process", str(self._told), str(await self._ahead())),
            env={
                **os.environ,
                "MUSTER_PUBLISHER_KEY": self._pool.world.keys["publisher"].reveal().hex(),
                "OMP_NUM_THREADS": "1",
            },
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            ready = await self._until_over(process, begun, since, kill_after, starting=starting)
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        if code not in {0, -signal.SIGKILL}:
            raise SystemExit(f"the trainer ended with {code}")
        took = None if ready is None else ready - since
        return Life(seconds=time.perf_counter() - since, starting=took, killed=code != 0)

    async def _until_over(
        self, process: Process, begun: int, since: float, kill_after: float | None, *, starting: bool
    ) -> float | None:
        """Kills the process at its time unless it has ended; returns when it was ready, None if never."""
        ready: float | None = None
        while process.returncode is None:
            now = time.perf_counter()
            if ready is None and len(self._pool.progress("started")) > begun:
                ready = now
            due = since if starting else ready
            if kill_after is not None and due is not None and now - due >= kill_after:
                process.send_signal(signal.SIGKILL)
                break
            await asyncio.sleep(0.01)
        return ready

    async def _ahead(self) -> float:
        """Returns how far the chain's time, which the orchestrator uses, is ahead of this machine's."""
        return (self._pool.run.pool.clock.now() - datetime.now(UTC)).total_seconds()


@asynccontextmanager
async def pool_of(
    founded: Founded, chain: str, controls: ChainControls, redis_url: str, home: Path
) -> AsyncIterator[tuple[TrainedPool, str]]:
    """Starts a pool working on the base in `home`; yields it with its orchestrator's URL, then resets the chain."""
    with sync_redis.from_url(redis_url) as client:
        client.flushall()
    snapshot = await controls.snapshot()
    listener = uvicorn.Config("", port=0, log_config=None).bind_socket()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    (home / "orchestrator").mkdir(parents=True)
    async with AsyncExitStack() as stack:
        world = World(chain, controls, founded.deployment, founded.keys, stack)
        run = await stack.enter_async_context(orchestrating(world, redis_url, home / "orchestrator", public_url=url))
        server = uvicorn.Server(uvicorn.Config(run.pool.app, log_config=None, access_log=False))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await run.sync.round()
        pool = TrainedPool(run, world, await join_by_relay(run, world), home, most_groups=4)
        async with pool.working():
            yield pool, url
        server.should_exit = True
        await serving
    await controls.revert(snapshot)


def was_at(pool: TrainedPool, life: Life) -> tuple[str, int]:
    """Returns the activity of a killed process according to its files, and the number of steps to be learned again."""
    state, recorded = pool.folder / "state", pool.recorded()
    saved = step_saved(state / STATE_FILE)
    last = max(recorded.batches, default=-1)
    again = max(0, last + 1 - saved)
    if life.starting is None:
        return "starting", again
    if not again:
        return f"gathering step {last + 1}", again
    if last + 1 in recorded.written:
        return f"saving the state of step {last}", again
    made = f".{last + 1}.made"
    if any((pool.folder / "policies" / name).exists() for name in (made, f".{made}.part")):
        return f"writing version {last + 1}", again
    return f"learning step {last}", again


def step_saved(path: Path) -> int:
    """Returns the step of a saved state; 0 if there is none."""
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        return int(json.loads(file.metadata()["muster"])["step"])


async def measure(*, kills: int, steps: int, seed: int, home: Path) -> bool:
    """Measures the run; returns its table and whether it equals an uninterrupted run."""
    table = Table(title=f"kill -9, seed {seed}, {steps} steps")
    for column in ("kill", "lived", "was at", "steps to learn again", "waits for rollouts again after"):
        table.add_column(column, justify="left" if column == "was at" else "right")
    with redis_server() as redis_url:
        async with start_chain(ChainKind.EMBEDDED, accounts=20) as chain, ChainControls(chain.url) as controls:
            founded = await found(chain)
            base_folder(home / "base", width=WIDTH, layers=LAYERS)
            async with pool_of(founded, chain.url, controls, redis_url, home) as (pool, url):
                rows = await kill_again(Trainer(pool, url=url, steps=steps), pool, kills=kills, seed=seed)
                for row in rows:
                    table.add_row(*row)
                Console(width=110).print(table)
                return await asyncio.to_thread(same, pool)  # meanwhile the pool works on and keeps its leases


async def kill_again(trainer: Trainer, pool: TrainedPool, *, kills: int, seed: int) -> list[tuple[str, ...]]:
    """Kills the run a number of times and then lets it finish; yields a row for each kill."""
    moments, start = random.Random(seed), FIRST_START
    rows = list[tuple[str, ...]]()
    for number in range(1, kills + 1):
        starting, drawn = moments.random() < KILLED_WHILE_STARTING, moments.random()
        step = mean([line["seconds"]["total"] for line in pool.progress("step")] or [FIRST_STEP])
        life = await trainer.live(drawn * (start if starting else STEPS_OF_A_LIFE * step), starting=starting)
        if rows:
            rows[-1] = (*rows[-1], "killed before" if life.starting is None else f"{life.starting:.1f} s")
        if not life.killed:
            tell(f"the run was done before kill {number}")
            return rows
        start = life.starting or start
        doing, again = was_at(pool, life)
        rows.append((str(number), f"{life.seconds:.2f} s", doing, str(again)))
        tell(f"kill {number} after {life.seconds:.2f} s: {doing}, {again} to learn again")
    life = await trainer.live()
    rows[-1] = (*rows[-1], f"{life.starting or 0:.1f} s")
    return rows


def same(pool: TrainedPool) -> bool:
    """Compares a run with an uninterrupted run over the same batches; returns the differences."""
    recorded = pool.recorded()
    torch.set_num_threads(1)
    torch.manual_seed(pool.settings().seed)
    versions, snapshot = pool.uninterrupted(recorded)
    with safe_open(pool.folder / "state" / STATE_FILE, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    others = [name for name in snapshot.tensors if not torch.equal(snapshot.tensors[name], tensors[name])]
    equal = {
        "version digests": versions == {version: recorded.written[version] for version in versions},
        "weights, averages and random numbers, to the bit": not others and tensors.keys() == snapshot.tensors.keys(),
    }
    for what, so in equal.items():
        print(f"the same {what}: {'yes' if so else 'NO'}")
    if others:
        print(f"  others: {', '.join(others[:8])}")
    print(f"{len(versions)} steps, {sum(each.numel() for each in tensors.values()):,} numbers of state")
    return all(equal.values())


def tell(words: str) -> None:
    """Prints the progress."""
    print(words, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs and prints the table; exits with 1 if the runs differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="muster-survival-") as home:
        good = asyncio.run(measure(kills=options.kills, steps=options.steps, seed=options.seed, home=Path(home)))
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    end_in_order()
    main()
