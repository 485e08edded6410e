"""Base class of enumerations that occur on the wire."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Self

from pydantic import GetCoreSchemaHandler, ValidationInfo, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, core_schema

ANSWER = "answer"
"""Validation context in which unknown values of enumerations are accepted."""
_WORD = re.compile(r"[a-z0-9-]{1,40}")


class WireEnum(StrEnum):
    """Base class of enumerations in wire models.

    A request with an unknown value is refused. In an answer, an unknown value of a newer service becomes an instance
    that keeps the value as text, equals no known member, and has `is_known` False. Code that acts on a value must have
    a default for unknown values; a value that restricts what a node may do must be refused.
    """

    @property
    def is_known(self) -> bool:
        """Whether this release knows the value."""
        return self.value in type(self)._value2member_map_

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Adds the tolerance of `parse_answer`; the JSON schema stays that of an enumeration."""
        return core_schema.with_info_wrap_validator_function(cls._parse, handler(source))

    @classmethod
    def _parse(cls, value: object, known: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        is_unknown = isinstance(value, str) and value not in cls._value2member_map_ and _WORD.fullmatch(value)
        return cls._unknown(str(value)) if is_unknown and info.context == ANSWER else known(value)

    @classmethod
    def _unknown(cls, value: str) -> Self:
        member = str.__new__(cls, value)
        member._name_, member._value_ = "UNKNOWN", value
        return member
