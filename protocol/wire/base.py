"""Base classes of all wire models, and the bounded strings that they share.

A service refuses a request with an unknown field, because the caller expects the field to have an effect. A client
ignores unknown fields in an answer, at every depth, because a newer service may have added them, and accepts unknown
values of enumerations (`parse_answer`). Signed models must not have unknown fields in either direction.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, StringConstraints, model_validator
from pydantic_core import CoreSchema

from protocol.enumerations import ANSWER

MAX_INT64 = 2**63 - 1
"""Largest signed integer of 64 bits."""

EXAMPLE_IDENTIFIER = "0f0e0d0c0b0a09080706050403020100"
"""Example for the OpenAPI documents."""

Model = TypeVar("Model", bound=BaseModel)


class WireModel(BaseModel):
    """Base class of requests and answers.

    Models are immutable. Their validation errors never repeat a value, which may be a secret.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False, defer_build=True
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Declares in OpenAPI that answers may have additional fields.

        Requests keep `additionalProperties: false`.
        """
        written = handler(schema)
        if handler.mode == "serialization" and not issubclass(cls, SignedModel):
            handler.resolve_ref_schema(written).pop("additionalProperties", None)
        return written


class SignedModel(WireModel):
    """Base class of signed models.

    They must not have unknown fields in answers either, because an ignored field could change the meaning of the signed
    content.
    """

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, values: object) -> object:
        if isinstance(values, dict) and (
            unknown := sorted(str(name) for name in values.keys() - cls.model_fields.keys())
        ):
            names = ", ".join(unknown)[:200]
            raise ValueError(f"this release does not know the signed fields {names}: upgrade Muster")
        return values


def parse_answer(model: type[Model], body: bytes | str) -> Model:
    """Parses the JSON of an answer; tolerates fields and values of enumerations that this release does not know.

    Raises:
        ValidationError: The answer is malformed, or a signed model in it has an unknown field.
    """
    return model.model_validate_json(body, extra="ignore", context=ANSWER)


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"), Field(examples=["letters"])]
"""A name of 1 to 63 characters from a-z, 0-9, '.', '_', '-'. It begins and ends with a letter or digit."""

ShortText = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""One printable line of at most 200 characters."""

LongText = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
"""Text of at most 4,096 characters without NUL."""

Identifier = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$"), Field(examples=[EXAMPLE_IDENTIFIER])]
"""A random id of 128 bits as 32 hex digits."""

Milliseconds = Annotated[int, Field(ge=0, le=MAX_INT64, examples=[1_767_225_600_000])]
"""A point in time: milliseconds since 1970 in UTC."""

Bytes = Annotated[int, Field(ge=0, le=MAX_INT64, examples=[1 << 30])]
"""A size in bytes."""

PoolId = Annotated[int, Field(ge=1, le=MAX_INT64, examples=[7])]
"""Id of a pool on the ledger."""

Labels = Annotated[dict[Name, ShortText], Field(max_length=32, examples=[{"region": "eu"}])]
"""Labels of a node, at most 32."""
