"""The reason of a ban, which `muster pool ban` and `ban-provider` require."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from protocol.errors import InvalidInput
from protocol.wire.pool import Cause

BanReason = Annotated[str, typer.Option(help="Reason, at most 200 characters; it is public on the ledger.")]


def check_ban_reason(text: str) -> str:
    """Returns the reason of a ban without surrounding spaces.

    Raises:
        InvalidInput: It is empty, longer than 200 characters, or has control characters.
    """
    try:
        reason = Cause(reason=text.strip()).reason
    except ValidationError:
        raise InvalidInput("a reason must be one printable line of at most 200 characters") from None
    if not reason:
        raise InvalidInput(
            "a ban needs a reason",
            hint="write after --reason what the node did: the contributor, and everybody who reads the ledger, sees it",
        )
    return reason
