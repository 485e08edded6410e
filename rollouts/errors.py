"""What can be wrong with a policy's folder and with a file of rollouts.

InvalidInput
├── BadVersionFolder   a folder that no policy can be loaded from
└── BadRolloutFile     a file that is not what this format says; `rule` names what it breaks
"""

from __future__ import annotations

from protocol.errors import InvalidInput


class BadVersionFolder(InvalidInput):
    """No policy can be used from this folder."""

    code = "bad-version-folder"


class BadRolloutFile(InvalidInput):
    """The bytes are no file of rollouts."""

    code = "bad-rollout-file"
