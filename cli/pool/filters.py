"""Options that listings of the orchestrator share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from cli.output.quantities import parse_moment

SinceOption = Annotated[
    str | None, typer.Option(help="Only what is newer than this time, 2026-01-02T03:04:05Z, or 30min, 2h or 3d ago.")
]
UntilOption = Annotated[str | None, typer.Option(help="Only what is older than this time.")]
NewestOption = Annotated[bool, typer.Option("--newest", help="Newest first; default: oldest first.")]


def parsed_moment(text: str | None) -> datetime | None:
    """Parses the time of an option; None if the option was not given.

    Raises:
        InvalidInput: The text is no time.
    """
    return None if text is None else parse_moment(text)
