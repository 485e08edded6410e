"""Files of honest nodes and of attacks without a network, for tests and benchmarks.

The real generator makes the files, under leases of a pool that does not exist; they are submitted to no ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.toolkit import AdjustableEngine, AttackToolkit
from protocol.identifiers import Address, Digest, digest, run_id
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease, SlotSalt
from protocol.runtime.clock import SystemClock
from protocol.wire.leases import SignedLease
from protocol.wire.slots import SlotGrant
from rollouts.checks import CheckedVersion, open_version
from rollouts.engines.interface import Engine
from rollouts.task.policies import HeldPolicy
from validator.domain.submissions import WorkFacts

POOL = 1
_BLOCK = 7
_ORCHESTRATOR = Key.from_hex("0x" + "11" * 32)
_DOMAIN = SigningDomain(1, _ORCHESTRATOR.address)
_FAR = 1 << 36


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedIn:
    """Uploaded bytes, and the work units claimed for them."""

    path: Path
    units: int
    grant: SlotGrant

    @property
    def facts(self) -> WorkFacts:
        """Returns the submission's facts on the ledger."""
        with self.path.open("rb") as file:
            sha256 = digest(hashlib.file_digest(file, "sha256").digest())
        return WorkFacts.granted(self.grant, sha256=sha256, units=self.units)


class AttackHarness:
    """Makes files of one version, one after another.

    Args:
        engine: Generates answers; `close` closes it.
        folder: Folder of the version.
        history: Folders of earlier versions, the oldest first.
        home: Folder for files and changed weights.
        node: Node of the work.
    """

    def __init__(self, engine: Engine, folder: Path, *, history: Sequence[Path], home: Path, node: Address) -> None:
        self.version: CheckedVersion = open_version(folder)
        self._engine = AdjustableEngine(engine)
        self._engine.load(folder, version=self.version.digest)
        self._history = history
        self._home = home
        self._node = node
        self._scorer = ThreadPoolExecutor(max_workers=1)
        self._made = 0

    def grant(
        self,
        index: int,
        *,
        groups: int = 2,
        step: int = 0,
        node: Address | None = None,
        beacon: Digest | None = None,
        pool_id: int = POOL,
    ) -> SlotGrant:
        """Leases a slot as an orchestrator would; by default the beacon is derived from the index."""
        slot = SlotSalt(
            pool_id=pool_id,
            run=run_id("attacks"),
            step=step,
            index=index,
            node=node or self._node,
            version=1,
            digest=self.version.digest,
        )
        lease = Lease(
            pool_id=slot.pool_id,
            run=slot.run,
            step=slot.step,
            index=slot.index,
            node=slot.node,
            version=slot.version,
            digest=slot.digest,
            beacon_block=_BLOCK,
            salt=slot.derive(_ORCHESTRATOR, _DOMAIN),
            groups=groups,
            max_units=groups * self.version.recipe.units_per_group,
            expiry=_FAR,
        )
        signed = SignedLease.of(lease, domain=_DOMAIN, signature=lease.sign(_ORCHESTRATOR, _DOMAIN))
        beacon = beacon or digest(hashlib.sha256(f"beacon {index}".encode()).digest())
        return SlotGrant(lease=signed, beacon=beacon)

    def toolkit(self) -> AttackToolkit:
        """Returns the toolkit."""
        policy = HeldPolicy(self.version.digest, self.version.folder, ())
        return AttackToolkit(
            self._engine,
            policy,
            scorer=self._scorer,
            clock=SystemClock(),
            history=self._history,
            room=self._home,
        )

    def hand_in(self, trick: Trick, grant: SlotGrant) -> HandedIn | None:
        """Returns the slot's file as the trick makes it; None if the trick gives the slot up."""
        file = trick.make(self.toolkit(), grant)
        if file is None:
            return None
        self._made += 1
        path = self._home / f"{self._made}.parquet"
        trick.write(path, file)
        return HandedIn(path=path, units=trick.units(file), grant=grant)

    def close(self) -> None:
        """Frees the engine."""
        self._engine.close()
        self._scorer.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
