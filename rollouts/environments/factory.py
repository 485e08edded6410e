"""Environment families: the object that a package registers, with its version and options."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from protocol.errors import MusterError, plain_message
from rollouts.environments.errors import BadOptions, EnvironmentFault, UnknownEnvironmentVersion
from rollouts.environments.interface import Environment, Rewards
from rollouts.environments.validation import CheckedEnvironment, shown
from rollouts.sandbox import Sandboxes

_DIGEST_DIGITS = 16
_VERSION = re.compile(r"[A-Za-z0-9._-]{1,24}")
"""A version plus its digest and dependencies must fit into 64 characters."""

_LIST_ERRORS = frozenset({"tuple_type", "list_type"})
"""Types of pydantic's errors if a text is given where a list is expected."""
_METHODS = ("size", "prompt", "score", "demonstration")


class Options(BaseModel):
    """Base class of a family's options: validated, complete, and equal on every machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    local: ClassVar[frozenset[str]] = frozenset()
    """Options that may differ between machines, such as file paths; they are not part of the version."""

    def located(self) -> tuple[Self, tuple[Path, ...]]:
        """Returns the options with absolute paths, and the files of this machine that they name.

        A family that reads files overrides this method, so that a devnet can make the files readable for its tasks.
        """
        return self, ()


OptionsT = TypeVar("OptionsT", bound=Options)
_T = TypeVar("_T")

SandboxSource = Callable[[], Sandboxes]
"""Returns the sandboxes on demand; most environments need none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFacts:
    """Properties of an environment that follow from its options alone, without reading a data set.

    Args:
        version: The environment's full version.
        rewards: The values that the environment's scores can have.
    """

    version: str
    rewards: Rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[OptionsT]):
    """An environment family in the registry.

    Args:
        name: The name in recipes.
        version: Must change if any index gets another prompt, or any answer another score. Up to 24 letters, digits,
            dots, dashes and underscores; a suffix may follow after a `+`.
        summary: One line of description.
        options: The options class.
        build: Makes the environment from the version to report, the options and a source of sandboxes.
        depends_on: Returns local dependencies of the environment's scores, such as `py3.11`, which become part of the
            version.
        rewards: Values that the environment's scores can have: `Rewards.BINARY`, `Rewards.UNIT`, or a function that
            returns `Rewards.BINARY` or `Rewards.UNIT` for the options.
        suffix: Returns the part of the full version after the `+`; by default the dependencies and a digest of the
            options.

    Raises:
        ValueError: The version has an invalid form.
    """

    name: str
    version: str
    summary: str
    options: type[OptionsT]
    build: Callable[[str, OptionsT, SandboxSource], Environment]
    depends_on: Callable[[], str] = str
    rewards: Rewards | Callable[[OptionsT], Rewards] = Rewards.BINARY
    suffix: Callable[[OptionsT], str] | None = None

    def __post_init__(self) -> None:
        if not _VERSION.fullmatch(self.version):
            raise ValueError(f"environment {self.name}: {self.version!r:.80} is not a version such as 1 or 2026.11")

    def load(
        self, *, version: str | None, options: Mapping[str, JsonValue], sandboxes: SandboxSource
    ) -> CheckedEnvironment:
        """Makes the environment.

        Args:
            version: The family's version, with or without the suffix after `+`; None for the installed one.
            options: Values by name.
            sandboxes: Returns the sandboxes; called when the environment has to run untrusted code.

        Raises:
            BadOptions: An option is unknown or has an invalid value.
            UnknownEnvironmentVersion: The requested version is not the installed one, or its suffix does not match
                these options or the local dependencies.
            EnvironmentFault: The family raised another exception.
        """
        chosen = self.validated(options)
        facts = self._facts(chosen, version)
        full = facts.version
        made = self._guarded(lambda: self.build(full, chosen, sandboxes))
        if missing := [name for name in _METHODS if not callable(getattr(made, name, None))]:
            raise EnvironmentFault(
                f"environment {self.name} {full} lacks the methods {', '.join(missing)}: it is {shown(made)}"
            )
        return CheckedEnvironment(self.name, full, made, rewards=facts.rewards)

    def validated(self, options: Mapping[str, JsonValue]) -> OptionsT:
        """Returns the options with their defaults.

        Raises:
            BadOptions: An option is unknown or has an invalid value.
        """
        try:
            return self.options.model_validate(dict(options))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "options"
            known = ", ".join(self.options.model_fields) or "none"
            hint = f"its options are: {known}"
            if first["type"] in _LIST_ERRORS:
                hint = f"write a JSON list, such as -o '{place}=[\"…\"]', or a file, -o @FILE; {hint}"
            elif first["type"] == "missing":
                hint = f"give -o {place}=…; {hint}"
            raise BadOptions(f"environment {self.name}: {place}: {plain_message(first['msg'])}", hint=hint) from error

    def facts(self, *, version: str | None, options: Mapping[str, JsonValue]) -> EnvironmentFacts:
        """Returns properties of the environment that `load` makes from the same arguments; raises as `load` does."""
        return self._facts(self.validated(options), version)

    def _facts(self, chosen: OptionsT, version: str | None) -> EnvironmentFacts:
        full = self._guarded(lambda: self._full_version(chosen))
        if version is not None and version not in {self.version, full}:
            self._refuse(version, full)
        return EnvironmentFacts(version=full, rewards=self._guarded(lambda: self._rewards(chosen)))

    def _rewards(self, chosen: OptionsT) -> Rewards:
        return Rewards(self.rewards(chosen) if callable(self.rewards) else self.rewards)

    def _full_version(self, chosen: OptionsT) -> str:
        details = [self.suffix(chosen)] if self.suffix is not None else [self.depends_on(), _options_digest(chosen)]
        suffix = ".".join(detail for detail in details if detail)
        return f"{self.version}+{suffix}" if suffix else self.version

    def _guarded(self, make: Callable[[], _T]) -> _T:
        try:
            return make()
        except MusterError:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(
                f"environment {self.name} {self.version} can't be made: {type(error).__name__}: {str(error)[:200]}"
            ) from error

    def _refuse(self, wanted: str, full: str) -> None:
        if wanted.partition("+")[0] == self.version:
            raise UnknownEnvironmentVersion(
                f"environment {self.name}: version {wanted[:80]} was requested, but {full} is installed",
                hint="after the + come local dependencies and a digest of the options, including the data set's digest",
            )
        raise UnknownEnvironmentVersion(
            f"environment {self.name} has no version {wanted[:80]!r} here, but {self.version}",
            hint="install the release of the environment's package that has this version",
        )


def _options_digest(options: Options) -> str:
    """Returns a digest of the options that differ from the defaults; empty if no option differs."""
    changed = options.model_dump(mode="json", exclude_defaults=True, exclude=set(options.local))
    if not changed:
        return ""
    canonical = json.dumps(changed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_DIGITS]
