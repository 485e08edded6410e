"""The Lua scripts of the store. Redis 6.2 commands only; all keys share the first one's prefix: a cluster serves them.

A script may run twice when its answer was lost, so each of them may.
"""

from __future__ import annotations

from importlib import resources


def script(name: str) -> str:
    """The text of one script."""
    return (resources.files(__name__) / f"{name}.lua").read_text()
