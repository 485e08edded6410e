"""`--wide` and `--watch`: the options that all listing commands share."""

from __future__ import annotations

import asyncio
import inspect
import shutil
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Annotated, Any, TypeVar, cast

import typer

from cli.output.printing import at_terminal, output_form, shorten, show_error
from protocol.errors import MusterError

Command = TypeVar("Command", bound=Callable[..., Any])

WideOption = Annotated[
    bool, typer.Option("--wide", help="Print full values, also if they exceed the terminal's width.")
]
WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C; in a pipe, print the output again when it changes.")
]
IntervalOption = Annotated[
    float, typer.Option("--interval", min=0.2, max=3600, help="With --watch: seconds between two refreshes.")
]

_BEGIN = "\x1b[?1049h\x1b[?25l"
"""Enters the alternate screen and hides the cursor."""
_END = "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_HOLD, _SHOW = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized update: the terminal shows all changes between the two at once."""


def listing(*, watch: bool = False) -> Callable[[Command], Command]:
    """Adds `--wide` to a command that prints a listing, and with `watch` also `--watch` and `--interval`.

    The function must return after it has printed the listing, because `--watch` calls it once per refresh.
    """
    added: dict[str, tuple[object, object]] = {"wide": (WideOption, False)}
    if watch:
        added |= {"watch": (WatchOption, False), "interval": (IntervalOption, 2.0)}

    defaults: dict[str, Any] = {"wide": False, "watch": False, "interval": 2.0}

    def decorate(function: Command) -> Command:
        async def refreshed(*arguments: Any, wide: bool, watch: bool, interval: float, **options: Any) -> None:  # noqa: ANN401
            async def once() -> None:
                found = function(*arguments, **options)
                if inspect.isawaitable(found):
                    await found

            if watch:
                await _watch(once, wide=wide, interval=interval)
                return
            with output_form(wide=wide):
                await once()

        @wraps(function)
        async def run(*arguments: Any, **options: Any) -> None:  # noqa: ANN401
            await refreshed(*arguments, **(defaults | options))

        @wraps(function)
        def run_synchronously(*arguments: Any, **options: Any) -> None:  # noqa: ANN401
            asyncio.run(refreshed(*arguments, **(defaults | options)))

        command: Any = run if inspect.iscoroutinefunction(function) else run_synchronously
        signature = inspect.signature(function, eval_str=True)
        parameters = list(signature.parameters.values())
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in added.items()
        ]
        command.__signature__ = signature.replace(parameters=parameters)
        return cast("Command", command)

    return decorate


async def _watch(once: Callable[[], Awaitable[None]], *, wide: bool, interval: float) -> None:
    """Prints the output of `once` again and again until Ctrl-C.

    An error that a retry may cure is shown, and the next refresh tries again. The first refresh must succeed.
    """
    live = at_terminal()
    last: list[str] | None = None
    if live:
        sys.stdout.write(_BEGIN)
    try:
        while True:
            lines: list[str] = []
            trouble = ""
            try:
                with output_form(wide=wide, lines=lines, one_line=not live):
                    await once()
            except MusterError as error:
                if last is None or not error.retryable:
                    raise
                lines, trouble = last, error.detail
                if not live:
                    show_error(error)
            if live:
                _draw(lines, trouble=trouble, interval=interval)
            elif lines != last:
                sys.stdout.write("".join(f"{line}\n" for line in lines) + ("" if _is_json(lines) else "\n"))
                sys.stdout.flush()
            last = lines
            await asyncio.sleep(interval)
    finally:
        if live:
            sys.stdout.write(_END + "".join(f"{line}\n" for line in last or ()))
            sys.stdout.flush()


def _is_json(lines: list[str]) -> bool:
    """Returns whether the output is one JSON document on one line, which needs no empty line behind it."""
    return len(lines) == 1 and lines[0][:1] in {"{", "["}


def _draw(lines: list[str], *, trouble: str, interval: float) -> None:
    """Replaces the screen's content without clearing it first, so that it does not flicker."""
    size = shutil.get_terminal_size()
    head = f"every {interval:g} s, {datetime.now(UTC):%H:%M:%S} UTC, Ctrl-C ends" + (f": {trouble}" if trouble else "")
    room = max(1, size.lines - 2)
    shown = lines if len(lines) <= room else [*lines[: room - 1], f"… {len(lines) - room + 1} more lines"]
    text = "".join(f"{line}{_REST_OF_LINE}\r\n" for line in [shorten(head, size.columns), *shown])
    sys.stdout.write(f"{_HOLD}{_HOME}{text}{_REST_OF_SCREEN}{_SHOW}")
    sys.stdout.flush()
