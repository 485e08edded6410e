"""Answers a shell's request for completions, without importing any command if the index is in the cache.

Shells pass the command line in environment variables; names and formats are those of the scripts that
`muster --install-completion` installs (typer's, for bash, zsh and fish).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cli import COMPLETION_VARIABLE
from protocol import __version__

Completion = tuple[str, str]
"""A word and its help text."""


def answer() -> bool:
    """Prints completions if bash, zsh or fish requests them; otherwise prints nothing and returns False.

    For fish, exits with 1 if there is no completion, so that fish completes file names.
    """
    asked = os.environ.get(COMPLETION_VARIABLE)
    if asked not in {"complete_bash", "complete_zsh", "complete_fish"}:
        return False
    if asked == "complete_bash":
        words = _split(os.environ.get("COMP_WORDS", ""))
        at = int(os.environ.get("COMP_CWORD") or 0)
        before, begun = words[1:at], words[at] if at < len(words) else ""
    else:
        line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
        before, begun = _split(line)[1:], ""
        if before and not line.endswith(" "):
            before, begun = before[:-1], before[-1]
    found = list(completions(_index(), before, begun))
    if asked == "complete_bash":
        text = "\n".join(word for word, _ in found)
    elif asked == "complete_zsh":
        text = _for_zsh(found)
    elif os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        sys.exit(0 if found else 1)
    else:
        text = "\n".join("\t".join(one) if one[1] else one[0] for one in found)
    sys.stdout.write(text + "\n")
    return True


def completions(index: Mapping[str, Any], before: Sequence[str], begun: str) -> Iterator[Completion]:
    """Yields the words that can continue a command line.

    Args:
        index: The command `muster`, as in `index.json`.
        before: The complete words after `muster`.
        begun: The beginning of the word to complete; may be empty.
    """
    command, positional, awaited = index, 0, None
    for word in before:
        if awaited is not None:
            awaited = None
        elif word.startswith("-"):
            option = _option(command, word.split("=", 1)[0])
            if option is not None and option["value"] and "=" not in word:
                awaited = option
        elif word in command["commands"]:
            command, positional = command["commands"][word], 0
        else:
            positional += 1
    if awaited is not None:
        words: list[Completion] = [(choice, "") for choice in awaited["choices"]]
    elif begun.startswith("-"):
        words = [(name, option["help"]) for option in command["options"] for name in option["names"]]
    elif command["commands"]:
        words = [(name, one["help"]) for name, one in command["commands"].items()]
    else:
        arguments = command["arguments"]
        words = [(choice, "") for choice in arguments[min(positional, len(arguments) - 1)]] if arguments else []
    yield from (one for one in words if one[0].startswith(begun))


def index_file() -> Path:
    """Returns the path of the index in the user's cache; it changes with the release and with the command modules."""
    root = Path(__file__).parents[1]
    stamp = max(file.stat().st_mtime_ns for file in root.rglob("*.py"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "muster" / f"completion-{__version__}-{stamp:x}.json"


def _index() -> Mapping[str, Any]:
    """Reads the index; makes it if it is missing or damaged. An error while it is stored has no effect."""
    file = index_file()
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    from cli.completion.index import make_index  # noqa: PLC0415 - imports every command

    made = make_index()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in file.parent.glob("completion-*.json"):
            old.unlink(missing_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(made))
        partial.replace(file)
    return made


def _option(command: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((option for option in command["options"] if name in option["names"]), None)


def _split(line: str) -> list[str]:
    """Splits a command line; a word with an open quote counts as it is."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:
        words.append(lexer.token)
    return words


def _for_zsh(found: Sequence[Completion]) -> str:
    """Formats completions as arguments of zsh's `_arguments`; without any, zsh completes file names."""
    if not found:
        return "_files"
    lines = (f'"{_escaped(word)}":"{_escaped(text)}"' if text else f'"{_escaped(word)}"' for word, text in found)
    return "_arguments '*: :((" + "\n".join(lines) + "))'"


def _escaped(text: str) -> str:
    return re.sub(r"[$`]", r"\\\g<0>", text.replace('"', '""').replace("'", "''")).replace(":", r"\\:")
