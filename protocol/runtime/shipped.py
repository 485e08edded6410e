"""Finds files that belong to a release and are not Python code: locks, image recipes, systemd units, proxy rules.

In a checkout they are at their place in the repository. The wheel carries copies of them in the package `protocol`.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from protocol.errors import NotFound

SHIPPED = (
    "requirements.lock",
    "deploy/compose",
    "deploy/helm",
    "deploy/images",
    "deploy/locks",
    "deploy/nftables",
    "deploy/nginx",
    "deploy/prometheus",
    "deploy/systemd",
)
"""Paths of the shipped files and folders in the repository."""

_PROTOCOL = Path(__file__).resolve().parents[1]
_IN_WHEEL = _PROTOCOL / "shipped"


def shipped_root() -> Path:
    """Returns the folder below which the shipped files have their paths of the repository."""
    return _IN_WHEEL if _IN_WHEEL.is_dir() else _PROTOCOL.parent


def shipped(name: str) -> Path:
    """Returns the path of a shipped file or folder.

    Args:
        name: Path in the repository, for example `deploy/systemd`.

    Raises:
        NotFound: The release does not ship this file.
    """
    place = PurePosixPath(name)
    known = any(place.is_relative_to(each) for each in SHIPPED) and ".." not in place.parts
    found = shipped_root() / place
    if not known or not found.exists():
        raise NotFound(f"this release has no file {name!r}", hint="`muster files` lists them")
    return found


def shipped_files() -> list[str]:
    """Returns the names of all shipped files."""
    root = shipped_root()
    found = (path for name in SHIPPED for path in ((root / name).rglob("*") if "." not in name else [root / name]))
    return sorted(str(path.relative_to(root)) for path in found if path.is_file())
