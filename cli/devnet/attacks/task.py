"""`python -m cli.devnet.attacks.task NAME …`: rollout task of a cheating node; `…` are the honest task's arguments.

The loop, the bridge, the engine and the volume of versions are the real ones. The attack changes how a slot is
requested, generated and written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.registry import find_attack
from cli.devnet.attacks.serving import serving_attack
from cli.devnet.attacks.toolkit import AdjustableEngine, AttackToolkit
from protocol.errors import MusterError
from protocol.wire.bridge import HandOver
from protocol.wire.slots import SlotGrant, SlotWish
from rollouts.files.samples import RolloutFile
from rollouts.task.bridge import Bridge
from rollouts.task.generator import Produced, SlotGenerator
from rollouts.task.loop import RolloutTask
from rollouts.task.outbox import Outbox
from rollouts.task.policies import HeldPolicy
from rollouts.task.program import main as run_task

_KEPT = 2
"""Number of old versions that the attack keeps besides the present one."""


class CheatingTask(RolloutTask):
    """The real task with the changes of an attack.

    Args:
        trick: Hooks of the attack.
        data: The task's data volume.
        engine: Engine that generates answers.
        bridge: Connection to the worker.
        rest: Other arguments of `RolloutTask`.
    """

    def __init__(self, *, trick: Trick, data: Path, engine: Any, bridge: Bridge, **rest: Any) -> None:  # noqa: ANN401 - the real task's own arguments
        self._adjustable = AdjustableEngine(engine)
        rest |= {"outbox": CheatingOutbox(data, bridge=bridge, trick=trick), "most_slots": 1}
        super().__init__(bridge=CheatingBridge(bridge, trick), engine=engine, **rest)
        self._trick = trick
        self._room = data / "cheats"
        self._history: list[Path] = []

    def _load(self, policy: HeldPolicy) -> AttackToolkit:
        """Loads the version, and keeps a copy, because the real store removes old versions."""
        self._adjustable.load(policy.folder, version=policy.digest)
        toolkit = AttackToolkit(
            self._adjustable,
            policy,
            scorer=self._scorer,
            clock=self._clock,
            history=[old for old in self._history if old.name != policy.folder.name],
            room=self._room,
            make=self._trick.make,
        )
        policy.check_unchanged()
        self._remember(policy.folder)
        return toolkit

    async def _begin(self, generator: SlotGenerator, grant: SlotGrant, *, ends: float) -> asyncio.Future[Produced]:
        """Makes the slot's file on the engine's thread, because an attack may load other weights."""
        produce = partial(generator.produce, grant, should_stop=partial(self._should_stop, ends))
        return asyncio.ensure_future(self._with_engine(produce))

    def _remember(self, folder: Path) -> None:
        copy = self._room / "versions" / folder.name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(folder, copy)
        if copy not in self._history:
            self._history.append(copy)
        while len(self._history) > _KEPT + 1:
            shutil.rmtree(self._history.pop(0), ignore_errors=True)


class CheatingBridge(Bridge):
    """Connection to the worker that requests slots of the step which the attack chooses.

    Args:
        real: Bridge whose connections this one uses.
        trick: Hooks of the attack.
    """

    def __init__(self, real: Bridge, trick: Trick) -> None:
        self._client = real._client  # the same connections
        self._trick = trick

    async def slot(self, wish: SlotWish) -> SlotGrant:
        """Leases a slot of the step that the attack chooses."""
        return await super().slot(wish.model_copy(update={"step": self._trick.wish(wish.step)}))


class CheatingOutbox(Outbox):
    """Outbox of the task; the attack writes the file and chooses the claimed work units.

    Args:
        data: The task's data volume.
        bridge: Connection to the worker.
        trick: Hooks of the attack.
    """

    def __init__(self, data: Path, *, bridge: Bridge, trick: Trick) -> None:
        super().__init__(data, bridge=bridge)
        self._trick = trick

    def put(self, file: RolloutFile, *, took: timedelta | None = None) -> HandOver:
        """Hands the file over like the honest outbox; the attack then overwrites the file and its claim."""
        handed = super().put(file, took=took)
        path = self._data / handed.path
        self._trick.write(path, file)
        if handed.rollout is not None:
            claimed = handed.rollout.model_copy(update={"units": self._trick.units(file)})
            handed = handed.model_copy(update={"rollout": claimed})
        path.with_suffix(".json").write_bytes(handed.model_dump_json().encode())
        return handed


def main() -> int:
    """Runs the task; the first argument is the attack's name, the others are the real task's arguments."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    data = Path(os.environ["MUSTER_DATA_DIR"])
    try:
        if "--serve" in sys.argv:
            return run_task(sys.argv[2:], serve=serving_attack(name, data))
        trick = find_attack(name).trick()
    except MusterError as error:
        print(f"{error.detail}; {error.hint}", file=sys.stderr)  # noqa: T201 - output of the task
        return 2

    def make(**parts: Any) -> RolloutTask:  # noqa: ANN401 - the real task's own arguments
        return CheatingTask(trick=trick, data=data, **parts)

    return run_task(sys.argv[2:], make=make)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the real task ends the same way
