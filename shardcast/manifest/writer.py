"""The publisher's side of a manifest: says the next thing about a version, signed."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.checkpoints import version_digest
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from shardcast.manifest.manifest import BlockSpan, Manifest, VersionKey
from shardcast.manifest.records import DeltaBase, Extension, FileEnd, FileEntry, Opening, Shard, sign_extension


class ManifestWriter:
    """Extends the manifest of one attempt at one version, and signs each extension.

    Args:
        run: The run that the version is of.
        key: The version, and which attempt at it this is.
        publisher: Signs.
        base: What deltas in it are applied to.
    """

    def __init__(self, *, run: Digest, key: VersionKey, publisher: Key, base: DeltaBase | None = None) -> None:
        self.manifest = Manifest(run=run, key=key, signer=publisher.address)
        self._publisher = publisher
        self._base = base

    def extend(
        self,
        *,
        files: Sequence[FileEntry] = (),
        shards: Sequence[Shard] = (),
        ended: Sequence[FileEnd] = (),
        seal: bool = False,
    ) -> tuple[bytes, list[BlockSpan]]:
        """Signs an extension; returns the line and the blocks that it announces.

        Raises:
            BadManifest: It contradicts earlier extensions; nothing is signed.
        """
        return self._say(files, shards, ended, None) if not seal else self._seal(files, shards, ended)

    def _seal(
        self, files: Sequence[FileEntry], shards: Sequence[Shard], ended: Sequence[FileEnd]
    ) -> tuple[bytes, list[BlockSpan]]:
        line = b""
        spans: list[BlockSpan] = []
        if files or shards or ended:
            line, spans = self._say(files, shards, ended, None)
        sealed, _ = self._say((), (), (), version_digest(self.manifest.content()))
        return line + sealed, spans

    def _say(
        self,
        files: Sequence[FileEntry],
        shards: Sequence[Shard],
        ended: Sequence[FileEnd],
        digest: Digest | None,
    ) -> tuple[bytes, list[BlockSpan]]:
        manifest = self.manifest
        extension = Extension(
            run=manifest.run,
            version=manifest.key.version,
            attempt=manifest.key.attempt,
            sequence=manifest.length,
            previous=manifest.head,
            opening=Opening(base=self._base) if manifest.length == 0 else None,
            files=tuple(files),
            shards=tuple(shards),
            ended=tuple(ended),
            digest=digest,
        )
        spans = manifest.extend(extension, extension.digest_of_bytes())
        return sign_extension(extension, self._publisher), spans
