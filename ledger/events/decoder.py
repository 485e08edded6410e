"""Decodes logs of the ledger contracts into typed events, using the contracts' ABI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, get_type_hints

from eth_abi.exceptions import DecodingError
from eth_utils.crypto import keccak

from ledger.abi_types import from_abi
from ledger.artifacts import Contract, artifact
from ledger.events.types import EVENTS, LedgerEvent
from ledger.rpc.abi_decoding import decode
from ledger.transactions.receipts import EventLog
from protocol.identifiers import Address, Digest
from protocol.runtime.logs import get_logger

_log = get_logger(__name__)


class Deployed(Protocol):
    """Addresses of deployed contracts; implemented by `ledger.deployment.Deployment`."""

    @property
    def contracts(self) -> Mapping[Contract, Address]:
        """The address of each contract."""
        ...


class EventDecoder:
    """Decodes logs of one deployment's contracts.

    Args:
        deployment: Addresses of the contracts; logs of other addresses are ignored.
    """

    def __init__(self, deployment: Deployed) -> None:
        self._shapes = {
            (place, topic): shape
            for contract, place in deployment.contracts.items()
            for topic, shape in _shapes(contract).items()
        }

    def decode(self, log: EventLog) -> LedgerEvent | None:
        """Returns the event in a log; None if it is not an event of the deployment.

        A log of our contracts that does not fit the ABI shows that the deployment has another contract version. The
        decoder logs an error and skips such a log. A caller of the contracts can't make an event unreadable with a
        string that is not UTF-8, because `ledger.rpc.abi_decoding` decodes such strings, too.
        """
        shape = self._shapes.get((log.address, log.topics[0])) if log.topics else None
        if shape is None:
            return None
        try:
            return shape.read(log)
        except (DecodingError, StopIteration, ValueError) as error:
            _log.error(
                "event-unreadable",
                event_name=shape.kind.__name__,
                contract=log.address,
                transaction=log.transaction,
                reason=str(error)[:200],
                hint="check that the deployment file has the same version as the contracts",
            )
            return None


def topic_of(kind: type[LedgerEvent]) -> Digest:
    """Returns the first topic of an event type's logs, for log filters."""
    for contract, kinds in EVENTS.items():
        if kind in kinds:
            return next(topic for topic, shape in _shapes(contract).items() if shape.kind is kind)
    raise KeyError(kind.__name__)


@dataclass(frozen=True, slots=True)
class _Shape:
    kind: type[LedgerEvent]
    names: tuple[str, ...]
    hints: Mapping[str, Any]
    parameters: tuple[tuple[str, bool], ...]
    """ABI type of each parameter, and whether it is indexed (a topic)."""

    def read(self, log: EventLog) -> LedgerEvent:
        topics = iter(log.topics[1:])
        data = iter(decode([kind for kind, indexed in self.parameters if not indexed], log.data))
        values = [
            decode([kind], bytes.fromhex(next(topics)[2:]))[0] if indexed else next(data)
            for kind, indexed in self.parameters
        ]
        arguments = {name: from_abi(self.hints[name], value) for name, value in zip(self.names, values, strict=True)}
        return self.kind(log=log, **arguments)


def _shapes(contract: Contract) -> dict[Digest, _Shape]:
    entries = {entry["name"]: entry for entry in artifact(contract).abi if entry["type"] == "event"}
    found = {}
    for kind in EVENTS.get(contract, ()):
        inputs = entries[kind.__name__]["inputs"]
        signature = f"{kind.__name__}({','.join(item['type'] for item in inputs)})"
        names = tuple(field.name for field in fields(kind) if field.name != "log")
        parameters = tuple((item["type"], bool(item["indexed"])) for item in inputs)
        if len(names) != len(parameters):
            raise TypeError(f"{kind.__name__} has {len(names)} fields, its event {len(parameters)} parameters")
        topic = Digest("0x" + keccak(text=signature).hex())
        found[topic] = _Shape(kind, names, get_type_hints(kind), parameters)
    return found
