"""Writer of a manifest, used by the publisher: builds and signs extensions."""

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
        run: Id of the run.
        key: The version and the attempt at it.
        publisher: Key that signs the extensions.
        base: The version that deltas in this one are applied to.
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
        """Signs an extension; returns its line and the blocks that it announces.

        With `seal` the seal follows in an extension of its own, as it needs the digest over all files.

        Raises:
            BadManifest: It contradicts earlier extensions; nothing is signed.
        """
        return self._append(files, shards, ended, None) if not seal else self._seal(files, shards, ended)

    def _seal(
        self, files: Sequence[FileEntry], shards: Sequence[Shard], ended: Sequence[FileEnd]
    ) -> tuple[bytes, list[BlockSpan]]:
        line = b""
        spans: list[BlockSpan] = []
        if files or shards or ended:
            line, spans = self._append(files, shards, ended, None)
        sealed, _ = self._append((), (), (), version_digest(self.manifest.content()))
        return line + sealed, spans

    def _append(
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
