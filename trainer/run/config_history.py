"""History of learning settings by step; changes between two starts are logged and journalled.

After a crash, journalled steps are repeated; changed settings then give different weights. A
change of `learning` is refused if a version of these steps was written, because its digest would no longer match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import structlog

from protocol.errors import Conflict
from trainer.learning.settings import LearningSettings
from trainer.run.journal import Journal, LearnedUnder, Recorded, Value
from trainer.run.settings import TrainerSettings

_log = structlog.get_logger(__name__)

_LEARNING = "learning."


def learned_under(
    settings: TrainerSettings, learning: LearningSettings, *, device: str, processes: int = 1
) -> dict[str, Value]:
    """Returns all settings that determine the trained weights, by name as in the settings file."""
    knobs = settings.knobs
    settings_by_name: dict[str, Any] = {
        "learning": learning.model_dump(mode="json"),
        "pools": settings.pools.model_dump(mode="json"),
        "device": device,
        "processes": processes,
        "dtype": settings.dtype.value,
        "groups_per_step": settings.groups_per_step,
        "most_groups_per_step": settings.most_groups,
        "reload_every": knobs.reload_every,
        "max_staleness": knobs.max_staleness,
        "stream": knobs.stream,
    }
    return dict(_flat(settings_by_name))


def adopt(now: Mapping[str, Value], *, journal: Journal, recorded: Recorded, step: int) -> None:
    """Records the learning settings of the following steps if they differ from the last recorded ones.

    Args:
        now: Result of `learned_under`.
        journal: Journal of the run.
        recorded: Content of the journal.
        step: The next step of the saved state; journalled steps from this one on are repeated.

    Raises:
        Conflict: The settings changed, and a version exists of steps that must be trained again.
        NotWritten: The disk is full or refuses the write.
    """
    before = recorded.learned_under[-1].values if recorded.learned_under else None
    if before is not None:
        changed = changes(before, now)
        if not changed:
            return
        made = [version for version in sorted(recorded.written) if version > step]
        otherwise = [text for name, text in changed.items() if name.startswith(_LEARNING)]
        if made and otherwise:
            raise Conflict(
                f"version {made[0]} includes steps that have to be repeated, from step {step} on, and "
                + "; ".join(otherwise),
                hint="start once with the old settings; when the log says `taken-up`, stop the trainer and change them",
            )
        _log.warning("settings-changed", since_step=step, changed=list(changed.values()))
    journal.append(LearnedUnder(step=step, values=dict(now)))


def changes(before: Mapping[str, Value], now: Mapping[str, Value]) -> dict[str, str]:
    """Returns a text for each difference, by name. Settings that only one of the two has are ignored."""
    return {
        name: f"{name} was {before[name]} and is {now[name]}"
        for name in sorted(before.keys() & now.keys())
        if before[name] != now[name]
    }


def _flat(settings_by_name: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for name, value in settings_by_name.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
