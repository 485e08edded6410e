"""Fixtures: warm sandboxes for the session, in each isolation available on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from rollouts.sandbox import Isolation, Sandboxes, SandboxSettings


@pytest.fixture(scope="session", params=list(Isolation), ids=lambda each: each.value)
def sandboxes(request: pytest.FixtureRequest) -> Iterator[Sandboxes]:
    """Returns sandboxes of one isolation."""
    isolation: Isolation = request.param
    if isolation is Isolation.NAMESPACES and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    found = Sandboxes(SandboxSettings(isolation=isolation, most=2))
    yield found
    found.close()
