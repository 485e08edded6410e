"""What can be wrong with the choice of an environment, and with its data.

MusterError
├── EnvironmentFault                an environment broke its own rules: raised, or gave no score
├── NotFound
│   ├── UnknownEnvironment          no family has that name
│   └── UnknownEnvironmentVersion   the family has, but not in that version or with those options
└── InvalidInput
    ├── BadOptions                  an option is unknown or has a value that it can't have
    ├── BadDataset                  a file of prompts that is not what it should be
    └── NoSuchPrompt                an index outside the environment
"""

from __future__ import annotations

from protocol.errors import InvalidInput, MusterError, NotFound


class EnvironmentFault(MusterError):
    """An environment raised, or answered what is no prompt or no score. Nobody's guilt but its author's."""

    code = "environment-fault"
    default_hint = "report it to whoever wrote the environment; muster env show and score find it again"


class UnknownEnvironment(NotFound):
    """No family of tasks has this name."""

    code = "unknown-environment"


class UnknownEnvironmentVersion(NotFound):
    """The family is known, but what is here scores otherwise than the version that was asked for."""

    code = "unknown-environment-version"


class BadOptions(InvalidInput):
    """An environment's option is unknown or has a value that it can't have."""

    code = "bad-environment-options"


class BadDataset(InvalidInput):
    """A file of prompts is missing, is another one than the options name, or can't be read."""

    code = "bad-dataset"


class NoSuchPrompt(InvalidInput):
    """The environment has no prompt of this index."""

    code = "no-such-prompt"
