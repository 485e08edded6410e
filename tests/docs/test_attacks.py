"""The table in docs/attacks.md lists the attacks that the tests run."""

from __future__ import annotations

from pathlib import Path

from cli.devnet.attacks.registry import ATTACKS

PAGE = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text()


def test_every_attack_has_its_row_in_the_order_of_the_registry() -> None:
    start = PAGE.index("| `")
    rows = PAGE[start : PAGE.index("\n\n", start)].splitlines()
    assert rows == [each.row() for each in ATTACKS.values()]
