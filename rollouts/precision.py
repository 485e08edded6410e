"""Engines, data types and numerics classes with which rollouts are generated."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)

_NAME = re.compile(r"(?P<engine>[a-z]+)(?:-(?P<version>[0-9a-z.]+))?/(?P<dtype>[a-z0-9]+)(?:/(?P<device>[a-z0-9_-]+))?")


class EngineName(StrEnum):
    """Engines that a lease, a rollout file or a calibration can name."""

    TORCH = "torch"
    VLLM = "vllm"


class Dtype(StrEnum):
    """Data type of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Arithmetic(BaseModel):
    """An engine with its data type, or a numerics class.

    A numerics class also has the engine's version and the class of the device. `vllm/bfloat16` names an engine and its
    type. `vllm-0.32.0/bfloat16/cpu-avx2` names a numerics class: two machines of one class compute the same bits for
    the same tokens, even with different batch sizes, threads and processes. On GPUs a class implies vLLM's
    batch-invariant mode; without that mode a GPU has no class.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: EngineName
    dtype: Dtype
    version: Annotated[str, StringConstraints(pattern=r"^([0-9][0-9a-z.]{0,15})?$")] = ""
    """Version of the engine; empty unless this is a numerics class."""
    device: Annotated[str, StringConstraints(pattern=r"^(cpu-[a-z0-9_]{1,24}|sm_[0-9]{2,3})?$")] = ""
    """Class of the device, such as `cpu-avx2` or `sm_90`; empty unless this is a numerics class."""

    @model_validator(mode="after")
    def _check_class(self) -> Self:
        if bool(self.version) != bool(self.device):
            raise ValueError("a numerics class has both a version of the engine and a device")
        if self.device and self.engine is not EngineName.VLLM:
            raise ValueError(f"the engine {self.engine.value} has no numerics classes")
        return self

    @model_serializer(mode="wrap")
    def _omit_empty(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omits empty fields, so that calibrations without numerics classes keep their bytes."""
        return {name: value for name, value in serialise(self).items() if value}

    def __str__(self) -> str:
        if not self.device:
            return f"{self.engine.value}/{self.dtype.value}"
        return f"{self.engine.value}-{self.version}/{self.dtype.value}/{self.device}"

    @property
    def is_class(self) -> bool:
        """True for a numerics class."""
        return bool(self.device)

    @property
    def has_wide_limits(self) -> bool:
        """True if validators can't reproduce the rounding, so that their limits let small cheats pass (decision 83)."""
        return self.dtype is Dtype.BFLOAT16 and not self.is_class

    @property
    def pair(self) -> Arithmetic:
        """The engine and data type alone."""
        return Arithmetic(engine=self.engine, dtype=self.dtype)

    @classmethod
    def parse(cls, name: str) -> Self:
        """Returns the engine and type, or the numerics class, with this name.

        Raises:
            ValueError: The name has another form, or names an unknown engine or type.
        """
        if not (found := _NAME.fullmatch(name)):
            raise ValueError(f"{name!r} is neither ENGINE/TYPE nor a numerics class such as {EXAMPLE}")
        given = {key: value for key, value in found.groupdict().items() if value}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"{part}: " for part in first["loc"])
            raise ValueError(f"{name!r}: {place}{first['msg']}") from error


EXAMPLE = "vllm-0.32.0/bfloat16/cpu-avx2"
"""Name of a numerics class, for messages."""


def arithmetic_name(engine: EngineName, dtype: Dtype) -> str:
    """Returns the name of an engine and data type as recipes spell it, e.g. `torch/float32`."""
    return f"{engine.value}/{dtype.value}"
