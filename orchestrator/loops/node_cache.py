"""The scheduler's cache of nodes: filled once, then updated with the nodes that changed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orchestrator.domain.node_states import MEMBERS
from orchestrator.scheduler.plan import Candidate
from orchestrator.store.assignments import AssignmentStore
from orchestrator.store.nodes import NodeRow, NodeStore
from protocol.identifiers import Address

AT_ONCE = 500
"""Number of nodes that are read per round trip to Redis."""


class NodeCache:
    """Caches the nodes that are members or still hold an assignment.

    Args:
        nodes: Store of nodes.
        assignments: Store of assignments.
    """

    def __init__(self, nodes: NodeStore, assignments: AssignmentStore) -> None:
        self._nodes = nodes
        self._assignments = assignments
        self.rows: dict[Address, NodeRow] = {}
        self.candidates: dict[Address, Candidate] = {}

    async def read_all(self) -> None:
        """Reads every node, page by page."""
        self.rows.clear()
        self.candidates.clear()
        after: str | None = None
        while page := await self._nodes.page(after=after, limit=AT_ONCE):
            await self.read(page)
            after = page[-1]

    async def read(self, addresses: Collection[Address]) -> None:
        """Reads the given nodes again."""
        ordered = sorted(addresses)
        for start in range(0, len(ordered), AT_ONCE):
            await self._read_some(ordered[start : start + AT_ONCE])

    async def _read_some(self, addresses: Sequence[Address]) -> None:
        rows = await self._nodes.get_many(addresses)
        for row, placement in zip(rows, await self._assignments.placements(rows), strict=True):
            if row.state in MEMBERS or row.assignment_id:
                self.rows[row.address] = row
                self.candidates[row.address] = Candidate(
                    address=row.address,
                    state=row.state,
                    since_ms=row.since_ms,
                    machine=row.machine,
                    placement=placement,
                )
            else:
                self.rows.pop(row.address, None)
                self.candidates.pop(row.address, None)
