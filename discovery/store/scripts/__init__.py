"""Lua scripts of the store. They use Redis 6.2 commands; all keys share one slot, as Redis Cluster requires."""

from __future__ import annotations

from importlib import resources


def script(name: str) -> str:
    """Returns the text of a script, preceded by `prune.lua` if it uses that."""
    folder = resources.files(__name__)
    text = (folder / f"{name}.lua").read_text()
    if "prune(" in text:
        text = (folder / "prune.lua").read_text() + text
    return text


PRUNE = (resources.files(__name__) / "prune.lua").read_text() + "return prune(KEYS[1], ARGV[1], ARGV[2], ARGV[3])"
