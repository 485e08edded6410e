"""Makes submissions for tests of the queue."""

from __future__ import annotations

from datetime import timedelta

from protocol.identifiers import Digest, digest
from protocol.identity.keys import Key
from validator.domain.items import ItemKind
from validator.domain.submissions import SubmittedWork
from validator.queue.store import NewItem

NODE = Key.generate()
POOL = 1


def sha(number: int) -> Digest:
    """Returns a recognisable digest."""
    return digest(f"0x{number:064x}")


def work(number: int = 1) -> SubmittedWork:
    """The submission with this key."""
    return SubmittedWork(
        key=sha(number),
        pool_id=POOL,
        node=NODE.address,
        run=sha(10**6),
        step=3,
        index=number,
        version=3,
        checkpoint=sha(10**6 + 1),
        beacon_block=1,
        salt=sha(10**6 + 2),
        groups=2,
        max_units=1000,
        sha256=sha(10**7 + number),
        units=100,
        block=number,
    )


def new(
    number: int = 1, *, deadline_s: int = 1000, kind: ItemKind = ItemKind.FIRST, delay: timedelta = timedelta()
) -> NewItem:
    """The same, to be put into the queue."""
    return NewItem(work=work(number), kind=kind, deadline_s=deadline_s, delay=delay)
