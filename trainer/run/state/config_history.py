"""History of learning settings by step; changes between two starts are logged and journalled.

After a crash, the trainer repeats journalled steps. With changed settings the repeated steps give different weights. So
a change of `learning` is refused if a version that includes such steps was written: its digest would no longer match.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import Conflict
from protocol.runtime.logs import get_logger
from trainer.run.state.journal import Journal, LearnedUnder, Recorded, Value

_log = get_logger(__name__)

_LEARNING = "learning."


def adopt(now: Mapping[str, Value], *, journal: Journal, recorded: Recorded, step: int) -> None:
    """Records the learning settings of the following steps if they differ from the last recorded ones.

    Args:
        now: Learning settings of this start, by name.
        journal: Journal of the run.
        recorded: Content of the journal.
        step: The next step of the saved state. Journalled steps from this step on are repeated.

    Raises:
        Conflict: Settings of `learning` changed, and a written version includes steps that must be repeated.
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
                f"version {made[0]} includes steps that have to be repeated, from step {step} on, but settings have "
                "changed: " + "; ".join(otherwise),
                hint="start once with the old settings; when the log says `taken-up`, stop the trainer and change them",
            )
        _log.warning("settings-changed", since_step=step, changed=list(changed.values()))
    journal.append(LearnedUnder(step=step, values=dict(now)))


def changes(before: Mapping[str, Value], now: Mapping[str, Value]) -> dict[str, str]:
    """Returns a text for each changed setting, by name.

    Settings that are missing on one side are ignored.
    """
    return {
        name: f"{name} was {before[name]} and is {now[name]}"
        for name in sorted(before.keys() & now.keys())
        if before[name] != now[name]
    }
