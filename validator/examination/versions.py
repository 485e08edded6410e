"""Folders of policy versions for examinations; a version is downloaded if needed and stays on disk while in use."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from cachetools import LRUCache

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import MusterError
from protocol.identifiers import Digest
from protocol.runtime.budgets import KeepRule, StoredVersion
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.wire.runs import CheckpointRef
from rollouts.errors import BadVersionFolder
from rollouts.task.policies import HeldPolicy, PolicyStore, Stamp, stamp_of

MOST_LOCAL = 256
"""Maximum number of folders in `policies` whose verified digest is cached; other folders are hashed at each use."""

_log = get_logger(__name__)


@dataclass(slots=True)
class _Held:
    policy: HeldPolicy
    users: int = 0


class VersionFolders:
    """Finds the folder of a version by its digest, in the operator's folder or among downloaded versions.

    Args:
        store: Store of downloaded versions.
        policies: The operator's folder of versions, each in a folder named by its digest or number; None if there is no
            such folder.
        keep: Rule that determines which downloaded versions stay on disk although no examination uses them.
    """

    def __init__(self, store: PolicyStore, *, policies: Path | None, keep: KeepRule) -> None:
        self._store = store
        self._policies = policies
        self._keep = keep
        self._held: OrderedDict[Digest, _Held] = OrderedDict()
        self._locks: WeakValueDictionary[Digest, asyncio.Lock] = WeakValueDictionary()
        """Locks by digest, so that concurrent examinations don't download the same version twice."""
        self._local: LRUCache[Digest, tuple[Path, Stamp]] = LRUCache(MOST_LOCAL)

    @asynccontextmanager
    async def folder(self, run: Digest, checkpoint: CheckpointRef) -> AsyncIterator[Path]:
        """Yields a version's folder with verified content, which is not removed while the context is entered.

        Args:
            run: Id of the run.
            checkpoint: The version, with its digest and relays.

        Raises:
            NoPolicy: The version is not on this machine, and no relay is known.
            BadVersionFolder: The folder's content is another version.
            MusterError: The version can't be fetched now: no relay serves it, the disk is full, or another process uses
                the folder.
            OSError: The disk can't be read or written.
        """
        digest = checkpoint.digest
        async with self._locks.setdefault(digest, asyncio.Lock()):
            local = await self._find_local(checkpoint)
            held = None if local is not None else await self._hold(run, checkpoint)
        if local is not None:
            yield local
            return
        if held is None:
            raise BadVersionFolder(f"the folder of version {digest} can't be kept")
        try:
            yield held.policy.folder
        finally:
            held.users -= 1
            self._release_idle(self._kept())

    def close(self) -> None:
        """Releases all unused versions, so that the store may remove their folders."""
        self._release_idle(0)

    async def _hold(self, run: Digest, checkpoint: CheckpointRef) -> _Held:
        """Returns a downloaded version and counts one more user; downloads the version if needed.

        The method counts the user before its first await; otherwise another task could release the version meanwhile.
        """
        found = self._held.get(checkpoint.digest)
        if found is not None:
            found.users += 1
            try:
                await run_in_thread(found.policy.check_unchanged)
            except BadVersionFolder as error:
                _log.warning("version-changed", why=error.detail)
                del self._held[checkpoint.digest]
                found.policy.release()
                found = None
            except BaseException:
                found.users -= 1
                raise
        if found is None:
            found = _Held(await self._store.hold(run, checkpoint), users=1)
            self._held[checkpoint.digest] = found
        self._held.move_to_end(checkpoint.digest)
        return found

    def _kept(self) -> int:
        idle = [held.policy.size for held in reversed(self._held.values()) if not held.users]
        return sum(self._keep.choose([StoredVersion(size, 0.0) for size in idle]).stays)

    def _release_idle(self, keep: int) -> None:
        idle = [digest for digest, held in self._held.items() if not held.users]
        for digest in idle[: max(0, len(idle) - keep)]:
            self._held.pop(digest).policy.release()

    async def _find_local(self, checkpoint: CheckpointRef) -> Path | None:
        if self._policies is None:
            return None
        known = self._local.pop(checkpoint.digest, None)
        if known is not None and await run_in_thread(stamp_of, known[0]) == known[1]:
            self._local[checkpoint.digest] = known
            return known[0]
        for name in (checkpoint.digest, str(checkpoint.version)):
            folder = self._policies / name
            stamp = await run_in_thread(stamp_of, folder)
            if await run_in_thread(_is_version, folder, checkpoint.digest):
                self._local[checkpoint.digest] = folder, stamp
                return folder
        return None


def _is_version(folder: Path, digest: Digest) -> bool:
    try:
        return folder.is_dir() and version_digest(folder_files(folder)) == digest
    except (MusterError, OSError):
        return False
