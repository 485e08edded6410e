"""The base of all wire models and the bounded strings they share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_INT64 = 2**63 - 1


class WireModel(BaseModel):
    """Immutable, refuses fields it does not know, never repeats a secret in an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
"""A DNS-label-like name: 1 to 63 of a-z, 0-9, '.', '_', '-', beginning and ending with a letter or digit."""

ShortText = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""One printable line of at most 200 characters."""

LongText = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
"""At most 4,096 characters without NUL."""

Identifier = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""A random id of 128 bits as 32 hex digits."""

Milliseconds = Annotated[int, Field(ge=0, le=MAX_INT64)]
"""A point in time: milliseconds since 1970 in UTC."""

Bytes = Annotated[int, Field(ge=0, le=MAX_INT64)]
"""A size in bytes."""

PoolId = Annotated[int, Field(ge=1, le=MAX_INT64)]
"""The number of a pool on the ledger."""

Labels = Annotated[dict[Name, ShortText], Field(max_length=32)]
"""At most 32 labels of a node."""
