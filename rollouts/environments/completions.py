"""Extracts the answer from a completion in one pass, in bounded time for hostile text."""

from __future__ import annotations

LONGEST_COMPLETION = 4 * 1024 * 1024
"""Maximum characters; a longer completion has no answer."""

_END_OF_THOUGHT = "</think>"
_FENCE = "```"
_BOX = "\\boxed{"
_LONGEST_ANSWER = 1000


def boxed_answer(completion: str) -> str | None:
    r"""Returns the content of the last `\boxed{…}` after `</think>`; None if missing, unclosed or too long."""
    text = _answer_part(completion)
    start = text.rfind(_BOX)
    if start < 0:
        return None
    depth = 1
    content = start + len(_BOX)
    for position in range(content, min(len(text), content + _LONGEST_ANSWER + 1)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
        if depth == 0:
            return text[content:position].strip()
    return None


def python_source(completion: str) -> str | None:
    """Returns the last closed code block after `</think>`, if marked as Python or unmarked; None if missing."""
    found: str | None = None
    block: list[str] | None = None
    language = ""
    for line in _answer_part(completion).split("\n"):
        if not line.lstrip().startswith(_FENCE):
            if block is not None:
                block.append(line)
        elif block is None:
            block, language = [], line.strip().strip("`").strip().lower()
        else:
            if language in {"", "python", "python3", "py"}:
                found = "\n".join(block)
            block = None
    return found


def _answer_part(completion: str) -> str:
    if len(completion) > LONGEST_COMPLETION:
        return ""
    return completion.rpartition(_END_OF_THOUGHT)[2]
