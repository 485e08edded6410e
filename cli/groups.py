"""Typer groups whose commands may be coroutine functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

import typer

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])


class CommandGroup(typer.Typer):
    """A `typer.Typer` that runs each `async def` command in a new event loop."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[CommandFunction], CommandFunction]:  # noqa: ANN401
        """Registers a command; the arguments are those of `typer.Typer.command`."""
        register = super().command(*arguments, **settings)

        def decorate(function: CommandFunction) -> CommandFunction:
            register(_synchronous(function) if iscoroutinefunction(function) else function)
            return function

        return decorate


def _synchronous(function: Callable[..., Any]) -> Callable[..., None]:
    """Returns a synchronous function with the same signature; typer reads the options from it."""

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> None:  # noqa: ANN401
        asyncio.run(function(*arguments, **options))

    return run
