"""Errors of environments and their data.

MusterError
├── EnvironmentFault                an environment raised an exception, or returned an invalid prompt or score
├── NotFound
│   ├── UnknownEnvironment          no family has this name
│   └── UnknownEnvironmentVersion   the family exists, but not in this version or with these options
└── InvalidInput
    ├── BadOptions                  an option is unknown or has an invalid value
    ├── BadDataset                  a file of prompts is missing or invalid
    └── NoSuchPrompt                the index is outside the environment
"""

from __future__ import annotations

from protocol.errors import InvalidInput, MusterError, NotFound


class EnvironmentFault(MusterError):
    """An environment raised an exception, or returned an invalid prompt or score.

    The cause is an error in the environment's code; no node is at fault.
    """

    code = "environment-fault"
    default_hint = "report it to the author of the environment; muster env show or muster env score reproduces it"


class UnknownEnvironment(NotFound):
    """No family of tasks has this name."""

    code = "unknown-environment"


class UnknownEnvironmentVersion(NotFound):
    """The family is known, but the installed version scores differently from the requested one."""

    code = "unknown-environment-version"


class BadOptions(InvalidInput):
    """An environment option is unknown or has an invalid value."""

    code = "bad-environment-options"


class BadDataset(InvalidInput):
    """A file of prompts is missing, unreadable, or has another digest than the options name."""

    code = "bad-dataset"


class NoSuchPrompt(InvalidInput):
    """The environment has no prompt with this index."""

    code = "no-such-prompt"
