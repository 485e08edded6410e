"""A policy folder that is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import Digest
from rollouts.errors import BadVersionFolder
from rollouts.models.facts import ModelFacts, fingerprint, read_model
from rollouts.models.tokenizer import FolderTokenizer


class WrongDigest(InvalidInput):
    """The folder is not the version that the request names, or it changed while it was read."""

    code = "wrong-digest"
    default_hint = "the service goes on with its version; wait until the folder is complete, and name its digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """A version folder whose weights the engine can load.

    Args:
        folder: The folder.
        digest: Its version digest.
        model: Facts of the model.
        tokenizer: Its tokenizer.
        files: State of its files when they were hashed.
    """

    folder: Path
    digest: Digest
    model: ModelFacts
    tokenizer: FolderTokenizer
    files: tuple[tuple[str, int, int, int], ...]

    @classmethod
    def open(cls, folder: Path, *, digest: Digest | None = None) -> ServedVersion:
        """Hashes and opens a folder, without its weights.

        Args:
            folder: The folder.
            digest: The expected version digest; None to accept any.

        Raises:
            WrongDigest: The folder has another digest.
            BadVersionFolder: The folder is not a usable version.
        """
        model, files = read_model(folder), fingerprint(folder)
        try:
            found = version_digest(folder_files(folder))
        except (MusterError, OSError) as error:
            raise BadVersionFolder(f"{folder} is not a version: {error}") from error
        if digest is not None and found != digest:
            raise WrongDigest(f"{folder} has the digest {found}, but the request names {digest}")
        opened = cls(folder=folder, digest=found, model=model, tokenizer=FolderTokenizer(folder), files=files)
        opened.check_unchanged()
        return opened

    def check_unchanged(self) -> None:
        """Checks that no file changed since the folder was hashed.

        Raises:
            WrongDigest: A file changed, so the digest may be that of other weights than an engine has loaded.
        """
        if fingerprint(self.folder) != self.files:
            raise WrongDigest(f"{self.folder} changed while it was read")
