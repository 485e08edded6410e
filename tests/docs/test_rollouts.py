"""The page about rollouts contains vectors that the code reproduces."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from protocol.identifiers import address, digest, run_id
from rollouts.recipe import Recipe
from rollouts.sampling.noise import row_keys, stream, words
from rollouts.seeds import draw_targets, prompt_positions, slot_seed

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "rollouts.md").read_text()


def listed(name: str) -> list[int]:
    found = re.search(rf"\| {name} \| ([\d, ]+) \|", PAGE)
    assert found is not None
    return [int(number) for number in found[1].split(",")]


def test_the_seed_on_the_page_draws_the_prompts_and_targets_on_the_page() -> None:
    seed = slot_seed(
        chain_id=31337,
        pool_id=5,
        run_id=run_id("vectors"),
        step=7,
        node=address("0x" + "a1" * 20),
        index=3,
        digest=digest("0x" + "b2" * 32),
        beacon=digest("0x" + "c3" * 32),
        salt=digest("0x" + "e5" * 32),
    )
    assert f"`{seed.hex()}`" in PAGE
    assert listed("prompts of 8 groups, 1000 eligible") == list(islice(prompt_positions(seed, 1000), 8))
    assert listed("targets of 8 groups, from 1, 3, 5, 7") == draw_targets(seed, (1, 3, 5, 7), 8)


def test_the_noise_words_on_the_page_are_reproduced() -> None:
    rows = re.findall(r"\| (\d+) \| (\d+) \| (\d+) \| `([0-9A-F]{8})` \|", PAGE)
    assert len(rows) == 7
    for sample, position, token, word in rows:
        keys = row_keys([stream(bytes(range(32)), int(sample))], [int(position)])
        assert words(keys, int(token) + 1)[0, int(token)] == int(word, 16)


def test_the_recipe_in_the_docs_is_valid() -> None:
    written = re.search(r"```json\n(\{\"format.*?)```", (DOCS / "rollouts.md").read_text(), re.DOTALL)
    assert written is not None
    assert Recipe.model_validate_json(written[1]).format == 2
