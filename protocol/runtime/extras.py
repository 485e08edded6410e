"""The distribution's extras: which one a missing module belongs to, and how it is installed.

Commands import what they need when they run. If an import fails, the entry point converts the `ModuleNotFoundError` to
a `MissingExtra`, which names the extra to install.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from protocol.errors import MusterError

DISTRIBUTION = "muster-network"
"""The distribution's name. `muster` on PyPI is another project."""

EXTRA_OF_MODULE = {
    "boto3": "s3",
    "botocore": "s3",
    "eth": "devnet",
    "eth_bloom": "devnet",
    "eth_tester": "devnet",
    "gguf": "devnet",
    "jinja2": "devnet",
    "math_verify": "rollouts",
    "pyarrow": "rollouts",
    "safetensors": "rollouts",
    "tensorboard": "tensorboard",
    "time_machine": "rollouts",
    "tokenizers": "rollouts",
    "torch": "rollouts",
    "transformers": "rollouts",
    "vllm": "vllm",
    "wandb": "wandb",
}
"""Extra by module, for every imported module that an installation without extras lacks."""


class MissingExtra(MusterError):
    """A command needs an extra that is not installed.

    Args:
        module: The missing module.
        extra: The extra that installs it.
        alternative: A way to do without the extra, for the hint.
    """

    code = "missing-extra"

    def __init__(self, module: str, extra: str, *, alternative: str = "") -> None:
        hint = installation(extra) + (f", or {alternative}" if alternative else "")
        super().__init__(f"this needs {module}, which is not installed", hint=hint)
        self.extra = extra


def installation(extra: str) -> str:
    """Returns the command that adds an extra to the environment of this process."""
    return f"{sys.executable} -m pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """Returns the error that names the extra; None if no extra brings the module."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF_MODULE.get(module)
    return None if extra is None else MissingExtra(module, extra)


def require_extra(extra: str) -> None:
    """Checks that an extra's modules are installed, without importing them.

    Raises:
        MissingExtra: A module is not installed.
    """
    for module, bringing in EXTRA_OF_MODULE.items():
        if bringing == extra and find_spec(module) is None:
            raise MissingExtra(module, extra)
