"""Available memory for weights and caches."""

from __future__ import annotations

import torch

from protocol.runtime.budgets import free_memory


def available_memory(device: torch.device) -> int:
    """Returns the number of bytes that can be allocated on a device now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return free_memory()
