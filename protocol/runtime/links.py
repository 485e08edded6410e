"""Names of a place behind symbolic links, for sandboxes that show parts of a file system at their own place."""

from __future__ import annotations

from pathlib import Path

_MOST_LINKS = 40
"""Number of links that Linux follows in one path."""


def names_of(path: Path) -> list[Path]:
    """Returns a path and every name that following its symbolic links leads to, the place's own name last.

    A program inside a sandbox follows a link step by step, so each step must be visible there. Directories may be links
    too: `/link/.venv` has the names `/link/.venv`, `/home/.venv` and `/opt/venv` where both are links.
    """
    names = [path.absolute()]
    for _ in range(_MOST_LINKS):
        followed = _follow_first_link(names[-1])
        if followed is None:
            break
        names.append(followed)
    return names


def _follow_first_link(path: Path) -> Path | None:
    for place in (*reversed(path.parents), path):
        if place.is_symlink():
            target = place.parent / place.readlink()
            return _without_dots(target / path.relative_to(place))
    return None


def _without_dots(path: Path) -> Path:
    """The path without `..`; what stands before one is no link, since links are followed from the left."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts = parts[:-1] or parts
        else:
            parts.append(part)
    return Path(*parts)
