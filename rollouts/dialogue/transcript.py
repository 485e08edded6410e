"""Dialogues as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from rollouts.dialogue.formats import DialogueTokenizer
from rollouts.turns import Turn


def transcript(drawn: Sequence[int], turns: Sequence[Turn], tokenizer: DialogueTokenizer) -> str:
    """Returns a dialogue as text: each message of the model after `> `, each reply after `< `.

    Args:
        drawn: The drawn tokens of all turns.
        turns: The turns; empty for a single answer, which is returned without a mark.
        tokenizer: The version's tokenizer; its control tokens are left out.
    """
    if not turns:
        return tokenizer.decode(drawn)
    lines: list[str] = []
    start = 0
    for turn in turns:
        lines.append(f"> {tokenizer.decode(drawn[start : start + turn.drawn])}")
        if len(turn.given):
            lines.append(f"< {tokenizer.decode(turn.given.tolist())}")
        start += turn.drawn
    return "\n".join(lines)
