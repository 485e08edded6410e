"""Stores finished files on the task's own volume until the worker has its own copy, so that a crash loses no file.

<data>/outbox/<run>-<step>-<index>.parquet    the file
<data>/outbox/<run>-<step>-<index>.json       its metadata; written last, so its presence marks a complete file
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from pydantic import ValidationError

from protocol.errors import MusterError
from protocol.runtime.files import write_atomically
from protocol.runtime.logs import get_logger
from protocol.wire.bridge import ROLLOUT_KIND, HandOver
from protocol.wire.slots import RolloutOf
from rollouts.files.samples import RolloutFile, Sample
from rollouts.files.schema import write_rollouts
from rollouts.task.bridge import Bridge

_log = get_logger(__name__)


class Outbox:
    """Files that wait to be handed over to the worker.

    Args:
        data: The task's data volume.
        bridge: Client of the worker.
    """

    def __init__(self, data: Path, *, bridge: Bridge) -> None:
        self._data = data
        self._home = data / "outbox"
        self._bridge = bridge

    def put(self, file: RolloutFile, *, took: timedelta | None = None) -> HandOver:
        """Writes a file and its metadata; both survive a restart of the task.

        Args:
            file: The rollout file.
            took: Time of generation; shown among the file's figures.

        Raises:
            OSError: The volume is full or not writable.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        header = file.header
        name = f"{header.run[2:18]}-{header.step}-{header.index}"
        path = self._home / f"{name}.parquet"
        write_rollouts(path, file)
        shown = figures(file.samples) | ({} if took is None else {"seconds": took.total_seconds()})
        rollout = RolloutOf(step=header.step, index=header.index, units=file.units, figures=shown)
        handed = HandOver(path=path.relative_to(self._data).as_posix(), kind=ROLLOUT_KIND, key=name, rollout=rollout)
        write_atomically(path.with_suffix(".json"), handed.model_dump_json(), mode=0o644)
        return handed

    async def hand_over(self, file: HandOver) -> None:
        """Hands one file over to the worker and deletes it.

        Raises:
            MusterError: The worker refused the file. The file is kept if the error is retryable, otherwise deleted.
        """
        try:
            await self._bridge.hand_over(file)
        except MusterError as error:
            if not error.retryable:
                self._forget(file)
            raise
        self._forget(file)

    async def hand_over_left(self) -> int:
        """Hands over all waiting files, including those of earlier runs of the task; returns their number.

        Raises:
            MusterError: The worker can't take a file now; this file and the following files are kept.
        """
        if not self._home.is_dir():
            return 0
        given = 0
        for note in sorted(self._home.glob("*.json")):
            try:
                await self.hand_over(HandOver.model_validate_json(note.read_bytes()))
                given += 1
            except ValidationError:
                note.unlink()
            except MusterError as error:
                if error.retryable:
                    raise
                _log.warning("left-file-not-taken", file=note.stem, why=error.detail)
        for path in self._home.iterdir():  # deletes incomplete files; the leases of their slots expire
            if path.suffix != ".json" and not path.with_suffix(".json").exists():
                path.unlink()
        return given

    def _forget(self, file: HandOver) -> None:
        path = self._data / file.path
        for part in (path.with_suffix(".json"), path):
            with suppress(FileNotFoundError):
                part.unlink()


def figures(samples: tuple[Sample, ...]) -> dict[str, float]:
    """Returns figures of a file's samples, for display; no validator has checked them."""
    count = len(samples)
    return {
        "samples": float(count),
        "reward": sum(sample.reward for sample in samples) / count,
        "task-reward": sum(sample.task_reward for sample in samples) / count,
        "length": sum(len(sample.output_tokens) for sample in samples) / count,
    }
