"""The Lua scripts of the store. Redis 6.2 commands only; all keys share one slot, so a cluster serves them too."""

from __future__ import annotations

from importlib import resources


def script(name: str) -> str:
    """The text of one script, with what it uses of `prune.lua` before it."""
    folder = resources.files(__name__)
    text = (folder / f"{name}.lua").read_text()
    if "prune(" in text:
        text = (folder / "prune.lua").read_text() + text
    return text


PRUNE = (resources.files(__name__) / "prune.lua").read_text() + "return prune(KEYS[1], ARGV[1], ARGV[2], ARGV[3])"
