"""Folders of versions: the cache of verified digests of the operator's folders is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from protocol.checkpoints import folder_files, version_digest
from protocol.identity.keys import Key
from protocol.runtime.budgets import KeepRule
from protocol.wire.runs import CheckpointRef
from rollouts.task.policies import PolicyStore
from tests.kit.rollout_files import RUN
from validator.examination.versions import VersionFolders


async def test_the_number_of_cached_digests_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.examination.versions.MOST_LOCAL", 2)
    versions = VersionFolders(cast("PolicyStore", None), policies=tmp_path, keep=KeepRule(most=1))
    publisher = Key.generate().address
    for number in (1, 2, 3, 1, 4):
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        (folder / "weights").write_bytes(bytes(number))
        digest = version_digest(folder_files(folder))
        checkpoint = CheckpointRef(version=number, attempt=1, digest=digest, block=1, publisher=publisher)
        async with versions.folder(RUN, checkpoint) as found:
            assert found == folder
    assert [folder.name for folder, _ in versions._local.values()] == ["1", "4"]
    assert len(versions._locks) == 0
