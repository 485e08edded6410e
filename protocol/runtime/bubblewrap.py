"""Building blocks of bubblewrap command lines.

They make files of this machine visible in a sandbox at the same paths.

The sandbox of tasks (`worker/runtime/sandbox.py`) and the sandbox of checks (`rollouts/sandbox/launch.py`) use them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_MOST_LINKS = 40
"""Maximum number of symbolic links that Linux follows in one path."""


LIBRARY_LINKS = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")
"""Directories that are symbolic links into /usr on most distributions."""


def bind(path: Path | str, *, mode: str = "--ro-bind") -> list[str]:
    """Returns flags that mount a path of this machine at the same path in the sandbox."""
    return [*parents(path), mode, str(path), str(path)]


def parents(path: Path | str) -> list[str]:
    """Returns flags that create the parent directories of a mount with mode 0755.

    By default, bubblewrap creates them with a mode that lets only root enter them.
    """
    return [flag for parent in list(Path(path).parents)[-2::-1] for flag in ("--perms", "0755", "--dir", str(parent))]


def system_files(paths: Iterable[str]) -> list[str]:
    """Returns flags that mount `paths` and the directories `/bin`, `/lib` and so on.

    Paths that do not exist on this machine are skipped. Directories that are links into /usr become links in the
    sandbox too.
    """
    flags = [flag for path in paths for flag in bind(path, mode="--ro-bind-try")]
    for link in map(Path, LIBRARY_LINKS):
        if link.is_symlink():
            flags += ["--symlink", str(link.readlink()), str(link)]
        else:
            flags += ["--ro-bind-try", str(link), str(link)]
    return flags


def outermost(paths: Iterable[Path]) -> list[Path]:
    """Returns the paths that are neither inside another of them nor inside /usr.

    The paths with the fewest parts come first.
    """
    kept: list[Path] = []
    for path in sorted(set(paths), key=lambda each: (len(each.parts), each)):
        if path != Path("/") and not any(path.is_relative_to(outer) for outer in (Path("/usr"), *kept)):
            kept.append(path)
    return kept


def names_of(path: Path) -> list[Path]:
    """Returns every path through which symbolic links lead from `path` to the real path.

    The first is `path` itself; each further one has one more link resolved; the real path is last.

    The kernel follows links step by step, also in a sandbox, so each of these paths must exist there. Directories may
    be links too: if `/link` leads to `/home`, and `/home/.venv` to `/opt/venv`, the names of `/link/.venv` are
    `/link/.venv`, `/home/.venv` and `/opt/venv`.
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
    """Returns the path without `..` parts.

    Dropping the part before `..` is correct, because that part is never a link: links are resolved from the left.
    """
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts = parts[:-1] or parts
        else:
            parts.append(part)
    return Path(*parts)
