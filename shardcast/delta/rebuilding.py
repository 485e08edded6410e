"""Rebuilds the files of a version from its base and its deltas."""

from __future__ import annotations

from pathlib import Path

from shardcast.delta.applying import apply_delta
from shardcast.delta.errors import BadDelta, WrongBase
from shardcast.local_version import LocalVersion


def rebuild(local: LocalVersion, *, base: Path, into: Path) -> None:
    """Rebuilds every file that was fetched as a delta.

    Files that an earlier, interrupted call left are overwritten.

    Args:
        local: A sealed version with verified deltas.
        base: Folder with the complete base.
        into: Folder for the version's files.

    Raises:
        WrongBase: The verified deltas do not produce the signed files, so the base on disk is not the right one.
        OSError: A file can't be written.
    """
    for file in local.manifest.files:
        if file.kind != "delta" or file.whole is None:
            continue
        delta, target = local.path(file.index), into / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            sha256 = apply_delta(base=base / file.path, delta=delta, target=target, size=file.whole.size)
        except (BadDelta, FileNotFoundError) as error:
            raise WrongBase(f"{base / file.path} is not the file that the delta was built on: {error}") from None
        if sha256 != file.whole.sha256:
            target.unlink()
            raise WrongBase(f"{base / file.path} and its delta do not produce the file of version {local.manifest.key}")
