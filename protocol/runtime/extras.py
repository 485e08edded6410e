"""Finds the extra of the Python distribution that a missing module belongs to.

Commands import optional modules when they run. If an import fails, the entry point converts the `ModuleNotFoundError`
to a `MissingExtra`, whose hint is the command that installs the extra.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from protocol.errors import MusterError

DISTRIBUTION = "muster-network"
"""Name of the Python distribution. The name `muster` on PyPI belongs to another project."""

EXTRA_OF_MODULE = {
    "boto3": "s3",
    "botocore": "s3",
    "eth": "devnet",
    "eth_bloom": "devnet",
    "eth_tester": "devnet",
    "gguf": "devnet",
    "jinja2": "devnet",
    "math_verify": "rollouts",
    "opentelemetry": "otel",
    "pyarrow": "rollouts",
    "reasoning_gym": "reasoning-gym",
    "safetensors": "rollouts",
    "sympy": "rollouts",
    "tensorboard": "tensorboard",
    "time_machine": "rollouts",
    "tokenizers": "rollouts",
    "torch": "rollouts",
    "transformers": "rollouts",
    "vllm": "vllm",
    "wandb": "wandb",
}
"""Extra that installs a module, for every imported module that is missing in an installation without extras."""


class MissingExtra(MusterError):
    """A command needs an extra that is not installed.

    Args:
        module: The missing module.
        extra: The extra that installs it.
        alternative: Another way to reach the goal without the extra, which is added to the hint.
    """

    code = "missing-extra"

    def __init__(self, module: str, extra: str, *, alternative: str = "") -> None:
        hint = installation(extra) + (f", or {alternative}" if alternative else "")
        super().__init__(f"this needs {module}, which is not installed", hint=hint)
        self.extra = extra


def installation(extra: str) -> str:
    """Returns the pip command that installs an extra into this process's environment."""
    return f"{sys.executable} -m pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """Returns the error that names the extra of a missing module.

    None if the module belongs to no extra.
    """
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF_MODULE.get(module)
    return None if extra is None else MissingExtra(module, extra)


def require_extra(extra: str) -> None:
    """Checks that all modules of an extra are installed, without importing them.

    Raises:
        MissingExtra: A module is not installed.
    """
    for module, bringing in EXTRA_OF_MODULE.items():
        if bringing == extra and find_spec(module) is None:
            raise MissingExtra(module, extra)
