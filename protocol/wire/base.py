"""Base classes of all wire models, and the bounded strings that they share.

Requests are strict: a field that the service does not know is refused, because the caller expects it to have an effect.
Answers are tolerant: `parse_answer` ignores fields that a newer service added, at every depth. Signed models are strict
in both directions.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, StringConstraints, model_validator
from pydantic_core import CoreSchema

MAX_INT64 = 2**63 - 1

Model = TypeVar("Model", bound=BaseModel)


class WireModel(BaseModel):
    """Base of requests and answers: immutable; requests are strict; errors never repeat a secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Declares in OpenAPI that answers may gain fields; requests keep `additionalProperties: false`."""
        written = handler(schema)
        if handler.mode == "serialization" and not issubclass(cls, SignedModel):
            handler.resolve_ref_schema(written).pop("additionalProperties", None)
        return written


class SignedModel(WireModel):
    """Base of signed models: strict in responses too, because an ignored field could change the signed content."""

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, values: object) -> object:
        if isinstance(values, dict) and (
            unknown := sorted(str(name) for name in values.keys() - cls.model_fields.keys())
        ):
            names = ", ".join(unknown)[:200]
            raise ValueError(f"this release does not know the signed fields {names}: upgrade it")
        return values


def parse_answer(model: type[Model], body: bytes | str) -> Model:
    """Parses a service's JSON answer; fields that this release does not know are ignored.

    Raises:
        ValidationError: The answer is malformed, or a signed part of it has an unknown field.
    """
    return model.model_validate_json(body, extra="ignore")


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
"""Id of a pool on the ledger."""

Labels = Annotated[dict[Name, ShortText], Field(max_length=32)]
"""At most 32 labels of a node."""
