"""How much memory there is for weights and caches."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

_GROUP = Path("/sys/fs/cgroup")
"""Inside a container this is the container's own control group (version 2)."""


def available_memory(device: torch.device, *, group: Path = _GROUP) -> int:
    """Returns how many bytes can be taken on a device now.

    On the CPU a process that takes too much is killed without a word, so its own limit counts besides the machine's.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return min(psutil.virtual_memory().available, _left_in(group))


def _left_in(group: Path) -> int:
    try:
        limit, used = (group / "memory.max").read_text().strip(), (group / "memory.current").read_text()
        return 1 << 62 if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):  # no such control group: no such limit
        return 1 << 62
