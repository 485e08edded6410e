"""Writer of a manifest, which the publisher uses to build and sign extensions."""

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
        base: The version to which this version's deltas are applied; None without deltas.
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
        """Builds and signs the next extension; returns its line and the announced blocks.

        Args:
            files: Declarations of new files.
            shards: Announcements of further bytes of files.
            ended: End records of files.
            seal: Whether to seal the version. The seal needs the digest over all files, so the seal is a second
                extension, and the result has two lines.

        Raises:
            BadManifest: The extension contradicts earlier ones; nothing is signed.
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
