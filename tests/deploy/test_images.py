"""The Dockerfiles' sources reach the engine: `.dockerignore` excludes none of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "deploy/images").glob("*/Dockerfile"))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_every_copied_path_is_in_the_build_context(dockerfile: Path) -> None:
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    context = exclude_paths(str(ROOT), patterns, dockerfile=str(dockerfile.relative_to(ROOT)))
    copied = [
        source
        for instruction in re.findall(r"^COPY (.+)$", dockerfile.read_text(), re.MULTILINE)
        if not instruction.startswith("--from=")
        for source in instruction.split()[:-1]
        if not source.startswith("--")
    ]
    assert copied
    assert [source for source in copied if source not in context] == []
