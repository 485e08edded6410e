"""The Lua scripts of the store. Redis 6.2 commands only; all keys share the first one's prefix: a cluster serves them.

A script may run twice when its answer was lost, so each of them may. Times are Redis' own, which a script may read
because what it wrote is replicated, and not the script.
"""

from __future__ import annotations

from importlib import resources


def script(name: str) -> str:
    """The text of one script, with what all of them begin with."""
    folder = resources.files(__name__)
    return (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()
