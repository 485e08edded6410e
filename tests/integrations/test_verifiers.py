"""The integration `verifiers`, installed from its wheel, with tasksets of verifiers, unmodified."""

from __future__ import annotations

import pytest

from tests.kit.integrations import run_cases

pytestmark = pytest.mark.needs_verifiers


@pytest.mark.timeout(1800)
def test_the_cases_of_the_integration_pass(tmp_path_factory: pytest.TempPathFactory) -> None:
    run_cases("verifiers", tmp_path_factory.mktemp("integrations"))
