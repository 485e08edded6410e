"""Environment `served`: the prompts are the requests that clients send to a pool's gateway; answers have no reward.

The gateway signs the list of the requests that a slot answered, and the node writes the list into its rollout file
(`protocol.wire.served`). So this environment has no prompts of its own.
"""

from __future__ import annotations

from protocol.identifiers import WireAddress
from rollouts.environments.errors import NoSuchPrompt
from rollouts.environments.factory import Family, Options, SandboxSource
from rollouts.environments.interface import Environment, Prompt, Score

NAME = "served"
VERSION = "1"


class ServedOptions(Options):
    """Options of `served`."""

    gateway: WireAddress
    """Address of the key with which the pool's gateway signs lists of requests."""


class Served:
    """The `served` environment; see the module docstring."""

    name = NAME

    def __init__(self, version: str) -> None:
        self.version = version

    def size(self) -> int | None:
        """Returns None: clients may send any number of requests."""
        return None

    def prompt(self, index: int) -> Prompt:
        """Raises an error, because the prompts come from clients.

        Raises:
            NoSuchPrompt: Always.
        """
        raise NoSuchPrompt(
            f"there is no prompt {index}: the prompts of this run come from the clients of a gateway",
            hint="run the task with --serve; such a run can't be used for training or evaluation",
        )

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:  # noqa: ARG002 - no answer is scored
        """Returns 0: answers to clients have no reward."""
        return Score(task=0.0)

    def demonstration(self, prompt: Prompt) -> str | None:  # noqa: ARG002 - there is none
        """Returns None."""
        return None


def _build(version: str, _options: ServedOptions, _: SandboxSource) -> Environment:
    return Served(version)


family = Family(
    name=NAME,
    version=VERSION,
    summary="requests of clients, through a pool's gateway; without rewards",
    options=ServedOptions,
    build=_build,
)
