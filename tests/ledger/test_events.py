"""Events match the ABI; other logs are ignored."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from eth_abi.abi import encode
from structlog.testing import capture_logs

from ledger.artifacts import Contract, artifact
from ledger.events.decoder import EventDecoder, topic_of
from ledger.events.types import EVENTS, LedgerEvent, MemberLeft, PoolCreated, WorkDisputed
from ledger.transactions.receipts import EventLog
from protocol.identifiers import ZERO_DIGEST, Address, Digest, address

PLACES: dict[Contract, Address] = {each: address(f"0x{i:040x}") for i, each in enumerate(Contract, start=1)}
RENAMED = {"from", "to", "digest", "sha256Hash"}
"""Parameters whose fields have a clearer name, or one that is legal in Python."""


class Deployed:
    contracts = PLACES


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize(("contract", "kind"), [(c, kind) for c, kinds in EVENTS.items() for kind in kinds])
def test_event_fields_match_the_contracts_parameters(contract: Contract, kind: type[LedgerEvent]) -> None:
    (entry,) = [e for e in artifact(contract).abi if e["type"] == "event" and e["name"] == kind.__name__]
    names = [field.name for field in fields(kind) if field.name != "log"]
    assert len(names) == len(entry["inputs"])
    for name, parameter in zip(names, entry["inputs"], strict=True):
        assert name == _snake(parameter["name"]) or parameter["name"] in RENAMED
    assert topic_of(kind).startswith("0x")


def _log() -> EventLog:
    node, key = PLACES[Contract.MUSTER], "0x" + "0a" * 32
    return EventLog(
        address=PLACES[Contract.WORK_LEDGER],
        topics=(
            topic_of(WorkDisputed),
            Digest(f"0x{7:064x}"),
            Digest("0x" + node[2:].lower().rjust(64, "0")),
            Digest(key),
        ),
        data=encode(["address", "bytes32"], [node, bytes(32)]),
        block_number=1,
        block_hash=ZERO_DIGEST,
        transaction=ZERO_DIGEST,
        index=0,
    )


def test_a_log_is_decoded_to_its_event() -> None:
    event = EventDecoder(Deployed()).decode(_log())
    assert isinstance(event, WorkDisputed)
    assert (event.pool_id, event.node, event.key) == (7, PLACES[Contract.MUSTER], "0x" + "0a" * 32)
    assert event.disputer == PLACES[Contract.MUSTER]


@pytest.mark.parametrize(
    "change",
    [
        {"address": PLACES[Contract.COMPUTE_POOLS]},
        {"topics": ()},
        {"topics": (ZERO_DIGEST,)},
        {"topics": (topic_of(WorkDisputed),)},
        {"topics": (topic_of(MemberLeft),)},
        {"data": b""},
        {"data": b"\xff" * 64},
    ],
)
def test_a_log_of_another_contract_or_topic_is_ignored(change: dict[str, object]) -> None:
    assert EventDecoder(Deployed()).decode(replace(_log(), **change)) is None  # type: ignore[arg-type]  # a table


def test_an_undecodable_log_is_logged_as_unreadable() -> None:
    with capture_logs() as said:
        assert EventDecoder(Deployed()).decode(replace(_log(), data=b"")) is None
        assert EventDecoder(Deployed()).decode(replace(_log(), topics=(ZERO_DIGEST,))) is None
    assert [(line["event"], line["event_name"]) for line in said] == [("event-unreadable", "WorkDisputed")]


@pytest.mark.parametrize(
    ("written", "read"), [(b"\xff\xfe\x80", "\ufffd\ufffd\ufffd"), (b"ok\xc3", "ok\ufffd"), ("ä".encode(), "ä")]
)
def test_an_event_with_a_non_utf8_string_is_kept(written: bytes, read: str) -> None:
    owner = PLACES[Contract.MUSTER]
    log = replace(
        _log(),
        address=PLACES[Contract.COMPUTE_POOLS],
        topics=(topic_of(PoolCreated), *(Digest(f"0x{each:064x}") for each in (7, 1, int(owner, 16)))),
        data=encode(["bytes"], [written]),  # encoded as a string is
    )
    event = EventDecoder(Deployed()).decode(log)
    assert isinstance(event, PoolCreated)
    assert (event.pool_id, event.owner, event.data_uri) == (7, owner, read)
