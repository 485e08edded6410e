"""The receiver's side of delta versions: the very files again, from the base's and what changed."""

from __future__ import annotations

from pathlib import Path

from shardcast.delta.applying import apply_delta
from shardcast.delta.errors import BadDelta, WrongBase
from shardcast.local_version import LocalVersion


def rebuild(local: LocalVersion, *, base: Path, into: Path) -> None:
    """Makes every file that came as a delta, and deletes the delta. What was made before a crash is made again.

    Args:
        local: A sealed version whose deltas are here, as the publisher signed them.
        base: The base's complete folder.
        into: The version's folder.

    Raises:
        WrongBase: The base on disk does not give what the publisher says; the deltas themselves are right.
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
            raise WrongBase(f"{file.path} of {base} is not what its delta was made on: {error}") from None
        if sha256 != file.whole.sha256:
            target.unlink()
            raise WrongBase(f"{file.path} of {base} and its delta do not give version {local.manifest.key}")
