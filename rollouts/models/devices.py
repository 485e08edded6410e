"""Finds the torch device that a user names."""

from __future__ import annotations

import torch

from protocol.errors import InvalidInput


def find_device(name: str | torch.device | None) -> torch.device:
    """Returns a device of this machine; for None an accelerator if there is one, else the CPU.

    Args:
        name: cpu, cuda or cuda:1.

    Raises:
        InvalidInput: The name is invalid, or this machine has no such device.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise InvalidInput(f"{str(name)[:40]!r} is not a device", hint="give cpu, cuda or cuda:NUMBER") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(f"this machine has no device {device}", hint="leave the device out, or give cpu")
    return device
