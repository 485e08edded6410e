"""LRU caches of one examiner process: opened versions, and loaded weights within a memory budget."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch
from cachetools import LRUCache

from protocol.identifiers import Digest
from rollouts.checks import CheckedVersion, open_version
from rollouts.errors import BadVersionFolder, OutOfMemory
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import Dtype
from validator.examination.interface import NotJudged

MOST_OPEN = 16
"""Maximum number of opened versions. An opened version holds recipe, tokenizer and prompt table, but no weights."""

MOST_LOADED = 4
"""Maximum number of policies with loaded weights.

Leases name the newest few versions; more loaded policies would only take memory.
"""

_BYTES = {Dtype.FLOAT32: 4, Dtype.BFLOAT16: 2}
"""Bytes of one parameter by type."""


class ModelCache:
    """Cache of opened versions and loaded policies.

    Args:
        device: Torch device of the policies.
        budget: Maximum size of all loaded weights, in bytes.
        strict: True to refuse a policy that is larger than the budget. If False, such a policy is loaded without any
            other policy, if the device has room for it.
    """

    def __init__(self, device: torch.device, *, budget: int, strict: bool = True) -> None:
        self._device = device
        self._budget = budget
        self._strict = strict
        self._versions: LRUCache[Digest, CheckedVersion] = LRUCache(MOST_OPEN)
        self._policies: OrderedDict[tuple[Digest, Dtype], tuple[Policy, int]] = OrderedDict()

    @property
    def held(self) -> int:
        """Size of all loaded weights, in bytes."""
        return sum(size for _, size in self._policies.values())

    def try_out(self) -> NotJudged | None:
        """Tests the device with a matrix product; returns None if the result is right, else the error."""
        ones = torch.ones(8, 8, device=self._device)
        total = float((ones @ ones).sum().item())
        if total != 8.0**3:
            why = f"the device {self._device} computes {total:g} for a sum that is {8**3}"
            return NotJudged(code="device-broken", why=why, retryable=True, hint="check the device and its driver")
        return None

    def version(self, digest: Digest, folder: Path) -> CheckedVersion:
        """Returns the version with this digest; opens its folder unless the opened version is cached.

        Raises:
            BadVersionFolder: The folder has another version, or no version.
            UnknownEnvironment: The version's environment is not installed on this machine.
        """
        found = self._versions.get(digest)
        if found is None or found.folder != folder:
            found = open_version(folder)
            if found.digest != digest:
                raise BadVersionFolder(f"the folder {folder} has version {found.digest}, not {digest}")
            self._versions[digest] = found
        return found

    def policy(self, version: CheckedVersion, dtype: Dtype) -> Policy:
        """Returns a version's policy; loads its weights unless they are cached, and drops other policies to make room.

        Raises:
            OutOfMemory: The weights exceed the budget or the device's memory.
            BadVersionFolder: The weights can't be loaded.
        """
        key = version.digest, dtype
        if key not in self._policies:
            size = version.model.parameters * _BYTES[dtype]
            if size > self._budget and self._strict:
                raise OutOfMemory(
                    f"the weights of version {version.digest} take {size:,} bytes; the limit is {self._budget:,}",
                    hint="raise the validator's setting policy_memory_bytes",
                )
            self._make_room(max(0, self._budget - size), most=MOST_LOADED - 1)
            self._policies[key] = self._load(version, dtype), size
        self._policies.move_to_end(key)
        return self._policies[key][0]

    def drop(self) -> None:
        """Frees the weights of all policies."""
        self._make_room(0, most=0)

    def _load(self, version: CheckedVersion, dtype: Dtype) -> Policy:
        try:
            return load_policy(version.folder, dtype=dtype, device=self._device)
        except OutOfMemory:
            if not self._policies:
                raise
        self.drop()
        return load_policy(version.folder, dtype=dtype, device=self._device)

    def _make_room(self, left: int, *, most: int) -> None:
        while self._policies and (self.held > left or len(self._policies) > most):
            _, (policy, _) = self._policies.popitem(last=False)
            policy.drop()
