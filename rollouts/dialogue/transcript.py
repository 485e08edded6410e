"""Dialogues as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from rollouts.dialogue.formats import DialogueTokenizer
from rollouts.turns import Turn

DRAWN, GIVEN = "> ", "< "
"""Marks before a message of the model, and before a message that the model read."""


def transcript(drawn: Sequence[int], turns: Sequence[Turn], tokenizer: DialogueTokenizer) -> str:
    """Returns a dialogue as text: each message of the model after `> `, each reply after `< `.

    Further lines of a message or reply begin with two spaces, so that no text can look like another turn.

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
        lines.append(marked(DRAWN, tokenizer.decode(drawn[start : start + turn.drawn])))
        if len(turn.given):
            lines.append(marked(GIVEN, tokenizer.decode(turn.given.tolist())))
        start += turn.drawn
    return "\n".join(lines)


def marked(mark: str, text: str) -> str:
    """Returns a message after its mark, with further lines indented; all line breaks of Unicode count."""
    return mark + "\n  ".join(text.splitlines() or [""])
