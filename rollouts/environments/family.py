"""What a package registers: a family of environments, its version, and the options that it understands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from rollouts.environments.errors import BadOptions, UnknownEnvironmentVersion
from rollouts.environments.interface import Environment

_DIGEST_DIGITS = 16


class Options(BaseModel):
    """The base of a family's options: checked, complete, and the same everywhere they are read."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    local: ClassVar[frozenset[str]] = frozenset()
    """Options that differ from machine to machine, such as where a file lies; they are no part of the version."""


OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[OptionsT]):
    """One entry of the registry.

    Args:
        name: What recipes call it.
        version: Changes whenever an equal index gives another prompt, or an equal answer another score.
        summary: One line for people.
        options: What can be set.
        build: Makes the environment from the version to report and the options.
    """

    name: str
    version: str
    summary: str
    options: type[OptionsT]
    build: Callable[[str, OptionsT], Environment]

    def load(self, *, version: str | None, options: Mapping[str, JsonValue]) -> Environment:
        """Makes the environment.

        Args:
            version: The family's version, alone or with the digest of the options; None for whatever is here.
            options: Values by name.

        Raises:
            BadOptions: An option is unknown or has an impossible value.
            UnknownEnvironmentVersion: What is here is another version, or these options are not those that it names.
        """
        try:
            chosen = self.options.model_validate(dict(options))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "options"
            known = ", ".join(self.options.model_fields) or "none"
            raise BadOptions(
                f"environment {self.name}: {place}: {first['msg']}", hint=f"its options are: {known}"
            ) from error
        full = self.version + _options_suffix(chosen)
        if version is not None and version not in {self.version, full}:
            self._refuse(version, full)
        return self.build(full, chosen)

    def _refuse(self, wanted: str, full: str) -> None:
        if wanted.partition("+")[0] == self.version:
            raise UnknownEnvironmentVersion(
                f"environment {self.name}: version {wanted[:80]} was asked for, and these options give {full}",
                hint="the digest after the + names the options, a data set's hash among them: use the same ones",
            )
        raise UnknownEnvironmentVersion(
            f"environment {self.name} has no version {wanted[:80]!r} here, but {self.version}",
            hint="install the release of its package that has this version",
        )


def _options_suffix(options: Options) -> str:
    """`+` and a digest of what differs from the defaults; nothing if nothing does."""
    changed = options.model_dump(mode="json", exclude_defaults=True, exclude=set(options.local))
    if not changed:
        return ""
    canonical = json.dumps(changed, sort_keys=True, separators=(",", ":"))
    return "+" + hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_DIGITS]
