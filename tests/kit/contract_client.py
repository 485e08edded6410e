"""Synchronous client of the contracts: sends, calls, expects errors by name and moves the chain's time."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any
from urllib.parse import urlsplit

from eth_abi.abi import decode, encode
from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from web3.types import Nonce
from web3.utils.address import get_create_address

from ledger.artifacts import Contract, artifact

FUNDED = Account.from_key("0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80")
"""The first account of the well-known development mnemonic; both chains fund it."""

GAS = 15_000_000
ZERO = "0x" + "00" * 20


@dataclass(frozen=True, slots=True)
class Event:
    """A decoded log."""

    name: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Receipt:
    """A transaction that went through."""

    gas: int
    block: int
    events: tuple[Event, ...]

    def only(self, name: str) -> Mapping[str, Any]:
        """The arguments of the one event with this name."""
        (found,) = [event.args for event in self.events if event.name == name]
        return found

    def names(self) -> list[str]:
        """The names of all events, in order."""
        return [event.name for event in self.events]


class RevertedCall(AssertionError):
    """A call reverted; `name` and `values` are those of the custom error."""

    def __init__(self, name: str, values: tuple[Any, ...]) -> None:
        super().__init__(f"reverted with {name}{values}")
        self.name = name
        self.values = values


class RpcError(Exception):
    """The node answered with an error that carries no revert data."""


class Line:
    """One kept connection that posts JSON, each request in one write.

    A history is thousands of small requests, and their time is that of the connection: the standard library's client
    writes head and body one after the other, which wakes the chain twice.
    """

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._to = (str(where.hostname), int(where.port or 80))
        self._head = f"POST / HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\nContent-Length: "
        self._open()

    def _open(self) -> None:
        self._socket = socket.create_connection(self._to)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, body: Any) -> Any:
        """Sends a request and returns the answer; retries once if the chain had closed an idle connection."""
        content = json.dumps(body).encode()
        request = f"{self._head}{len(content)}\r\n\r\n".encode() + content
        answer = self._exchange(request)
        if not answer:
            self.close()
            self._open()
            answer = self._exchange(request)
        return json.loads(answer)

    def _exchange(self, request: bytes) -> bytes:
        try:
            self._socket.sendall(request)
            data = b""
            while b"\r\n\r\n" not in data:
                piece = self._socket.recv(1 << 18)
                if not piece:
                    assert not data, "the chain hung up in mid answer"
                    return b""
                data += piece
        except ConnectionError:
            return b""
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        pieces = [body]
        missing = length - len(body)
        while missing > 0:
            pieces.append(self._socket.recv(1 << 18))
            assert pieces[-1], "the chain hung up in mid answer"
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()


@dataclass(slots=True)
class Chain:
    """One development chain with, after `deploy`, the eight contracts on it."""

    url: str
    contracts: dict[Contract, str] = field(default_factory=dict)
    _line: Line | None = None
    _ids: Iterator[int] = field(default_factory=itertools.count)
    _nonces: dict[str, int] = field(default_factory=dict)
    _chain_id: int = 0

    def rpc(self, method: str, *params: Any) -> Any:
        """Calls a JSON-RPC method."""
        return _result(self._post(self._request(method, *params)))

    def rpc_many(self, *requests: tuple[Any, ...]) -> list[Any]:
        """Calls methods in their order, in one round trip."""
        answers: list[dict[str, Any]] = self._post([self._request(*request) for request in requests])
        return [_result(answer) for answer in sorted(answers, key=lambda answer: int(answer["id"]))]

    def _request(self, method: str, *params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": list(params)}

    def close(self) -> None:
        """Ends the connection."""
        if self._line is not None:
            self._line.close()

    def _post(self, body: Any) -> Any:
        if self._line is None:
            self._line = Line(self.url)
        return self._line.post(body)

    @property
    def chain_id(self) -> int:
        """The chain's id."""
        if not self._chain_id:
            self._chain_id = int(self.rpc("eth_chainId"), 16)
        return self._chain_id

    def now(self) -> int:
        """The time of the latest block."""
        return int(self.rpc("eth_getBlockByNumber", "latest", False)["timestamp"], 16)

    def block(self) -> int:
        """The number of the latest block."""
        return int(self.rpc("eth_blockNumber"), 16)

    def warp(self, seconds: int) -> None:
        """Mines a block that is `seconds` after the latest one."""
        self.at(self.now() + seconds)
        self.rpc("evm_mine")

    def at(self, timestamp: int) -> None:
        """Gives the next block this time."""
        self.rpc("evm_setNextBlockTimestamp", timestamp)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restores the chain's state when the block ends."""
        snapshot = self.rpc("evm_snapshot")
        try:
            yield
        finally:
            assert self.rpc("evm_revert", snapshot)
            self._nonces.clear()

    def transfer(self, to: str, wei: int) -> None:
        """Sends native coins from the funded account."""
        self._transact(FUNDED, {"to": to, "value": wei, "data": b""})

    def create(self, contract: Contract, *arguments: Any, sender: LocalAccount) -> str:
        """Deploys one contract and returns where it is."""
        compiled = artifact(contract)
        inputs: list[Mapping[str, Any]] = next(
            (entry["inputs"] for entry in compiled.abi if entry["type"] == "constructor"), []
        )
        data = compiled.bytecode + _encode(inputs, arguments)
        receipt = self._transact(sender, {"to": b"", "value": 0, "data": data})
        self.contracts[contract] = str(to_checksum_address(receipt["contractAddress"]))
        return self.contracts[contract]

    def simulate_create(self, contract: Contract, *arguments: Any) -> None:
        """Tries a deployment without doing it."""
        compiled = artifact(contract)
        inputs: list[Mapping[str, Any]] = next(
            (entry["inputs"] for entry in compiled.abi if entry["type"] == "constructor"), []
        )
        data = compiled.bytecode + _encode(inputs, arguments)
        self.rpc("eth_call", {"from": FUNDED.address, "data": "0x" + data.hex(), "gas": hex(GAS)}, "latest")

    def deploy(self, deployer: LocalAccount, *, governor: str, unbonding: int) -> None:
        """Deploys all eight contracts in their order; each knows the others beforehand from the deployer's nonces."""
        first = self._nonce(deployer.address)
        where = {
            contract: str(get_create_address(deployer.address, Nonce(first + place)))
            for place, contract in enumerate(Contract)
        }
        token, registry, stake, domains, pools, _, work, _ = (where[contract] for contract in Contract)
        arguments: dict[Contract, tuple[Any, ...]] = {
            Contract.MUSTER: (governor,),
            Contract.COMPUTE_REGISTRY: (),
            Contract.STAKE_MANAGER: (token, pools, work, unbonding),
            Contract.DOMAIN_REGISTRY: (governor,),
            Contract.COMPUTE_POOLS: (token, registry, stake, domains, work),
            Contract.CHECKPOINTS: (pools,),
            Contract.WORK_LEDGER: (pools, registry, stake, token, domains),
            Contract.AUDIT_SECRETS: (pools,),
        }
        for contract in Contract:
            assert self.create(contract, *arguments[contract], sender=deployer) == where[contract]

    def address(self, contract: Contract) -> str:
        """Where a contract is."""
        return self.contracts[contract]

    def call(self, contract: Contract, function: str, *arguments: Any, sender: str | LocalAccount = ZERO) -> Any:
        """Calls without a transaction; structs come back as `Record`s."""
        entry = _function(contract, function, len(arguments))
        raw = self.rpc("eth_call", self._call(contract, entry, arguments, sender), "latest")
        return _outputs(entry, raw)

    def call_many(self, calls: list[tuple[Contract, str, tuple[Any, ...]]]) -> list[Any]:
        """Calls many functions in one round trip; each must go through. The answers are shared: read them only."""
        requests = [
            ("eth_call", {"from": ZERO, "to": self.contracts[call[0]], "data": _call_data(*call), "gas": hex(GAS)})
            for call in calls
        ]
        answers = self.rpc_many(*((*request, "latest") for request in requests))
        return [_known_outputs(*call, raw) for call, raw in zip(calls, answers, strict=True)]

    def attempt(
        self, contract: Contract, function: str, *arguments: Any, sender: LocalAccount, at: int
    ) -> Receipt | RevertedCall:
        """Sends a transaction in a block of its own at a time of one's choice; says what became of it."""
        entry = _function(contract, function, len(arguments))
        data = entry.selector + _encode(entry["inputs"], arguments)
        raw = self._mine(sender, {"to": self.contracts[contract], "value": 0, "data": data}, at=at)
        if int(raw["status"], 16) == 1:
            return _read(raw)
        try:
            self.rpc("eth_call", self._call(contract, entry, arguments, sender), "latest")
        except RevertedCall as reverted:
            return reverted
        raise AssertionError(f"{contract.value}.{function}{arguments} failed, and its replay did not")

    def send(self, contract: Contract, function: str, *arguments: Any, sender: LocalAccount) -> Receipt:
        """Sends a transaction that must go through."""
        entry = _function(contract, function, len(arguments))
        data = entry.selector + _encode(entry["inputs"], arguments)
        raw = self._transact(sender, {"to": self.contracts[contract], "value": 0, "data": data})
        return _read(raw)

    def refusal(self, contract: Contract, function: str, *arguments: Any, sender: str | LocalAccount = ZERO) -> str:
        """The name of the custom error that a call reverts with; fails if it does not revert."""
        return self.refused(contract, function, *arguments, sender=sender).name

    def refused(
        self, contract: Contract, function: str, *arguments: Any, sender: str | LocalAccount = ZERO
    ) -> RevertedCall:
        """The error that a call reverts with; fails if it does not revert."""
        entry = _function(contract, function, len(arguments))
        try:
            self.rpc("eth_call", self._call(contract, entry, arguments, sender), "latest")
        except RevertedCall as reverted:
            return reverted
        raise AssertionError(f"{contract.value}.{function}{arguments} did not revert")

    def sign(
        self, contract: Contract, signer: LocalAccount, primary: str, fields: str, values: tuple[Any, ...]
    ) -> bytes:
        """Signs EIP-712 data for a contract; `fields` is written as in Solidity: `uint256 poolId,address node`."""
        types = {primary: [dict(zip(("type", "name"), part.split(" "), strict=True)) for part in fields.split(",")]}
        names = [part["name"] for part in types[primary]]
        domain = {
            "name": "Muster",
            "version": "1" if contract is Contract.MUSTER else "2",  # OpenZeppelin fixes the permit's
            "chainId": self.chain_id,
            "verifyingContract": self.address(contract),
        }
        signed = signer.sign_typed_data(domain, types, dict(zip(names, values, strict=True)))
        return bytes(signed.signature)

    def _receipt(self, transaction: str) -> dict[str, Any]:
        # Both chains mine at once; anvil answers the sending a moment before the block is there.
        while True:  # the test's own limit ends it, however busy the machine is
            receipt: dict[str, Any] | None = self.rpc("eth_getTransactionReceipt", transaction)
            if receipt is not None:
                return receipt
            time.sleep(0.002)

    def _nonce(self, sender: str) -> int:
        if sender not in self._nonces:
            self._nonces[sender] = int(self.rpc("eth_getTransactionCount", sender, "latest"), 16)
        return self._nonces[sender]

    def _mine(self, sender: LocalAccount, transaction: dict[str, Any], *, at: int | None = None) -> dict[str, Any]:
        """Sends a transaction and returns its receipt; `at` is the time of its block."""
        signed = sender.sign_transaction(
            {
                **transaction,
                "type": 2,
                "chainId": self.chain_id,
                "nonce": self._nonce(sender.address),
                "gas": GAS,
                "maxFeePerGas": 10**10,
                "maxPriorityFeePerGas": 0,
            }
        )
        turning = [] if at is None else [("evm_setNextBlockTimestamp", at)]
        *_, sent = self.rpc_many(*turning, ("eth_sendRawTransaction", "0x" + bytes(signed.raw_transaction).hex()))
        self._nonces[sender.address] += 1
        return self._receipt(sent)

    def _transact(self, sender: LocalAccount, transaction: dict[str, Any]) -> dict[str, Any]:
        receipt = self._mine(sender, transaction)
        if int(receipt["status"], 16) != 1:
            replay = {"from": sender.address, "to": transaction["to"], "data": "0x" + transaction["data"].hex()}
            before = hex(int(receipt["blockNumber"], 16) - 1)
            self.rpc("eth_call", {**replay, "gas": hex(GAS)}, before)
            raise AssertionError(f"a transaction failed, and its replay did not: {receipt}")
        return receipt

    def _call(
        self, contract: Contract, entry: Entry, arguments: tuple[Any, ...], sender: str | LocalAccount
    ) -> dict[str, str]:
        data = entry.selector + _encode(entry["inputs"], arguments)
        origin = sender if isinstance(sender, str) else sender.address
        return {"from": origin, "to": self.contracts[contract], "data": "0x" + data.hex(), "gas": hex(GAS)}


def _result(answer: dict[str, Any]) -> Any:
    if "error" not in answer:
        return answer["result"]
    data = answer["error"].get("data")
    if isinstance(data, dict):
        data = data.get("data")
    if isinstance(data, str) and data.startswith("0x") and len(data) >= 10:
        raise RevertedCall(*_decode_error(bytes.fromhex(data[2:])))
    raise RpcError(answer["error"])


def malleable(signature: bytes) -> bytes:
    """The other signature that the same key could have made: s above half the order."""
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    other = order - int.from_bytes(signature[32:64], "big")
    return signature[:32] + other.to_bytes(32, "big") + bytes([55 - signature[64]])


def error_name(data: bytes) -> str:
    """The name of the custom error in revert data, or of a bare selector."""
    return str(_ERRORS[data[:4]]["name"])


def _decode_error(data: bytes) -> tuple[str, tuple[Any, ...]]:
    abi = _ERRORS.get(data[:4])
    if abi is None:
        return data.hex(), ()
    return abi["name"], tuple(_plain(value) for value in decode([_type(entry) for entry in abi["inputs"]], data[4:]))


def _outputs(entry: Mapping[str, Any], raw: str) -> Any:
    outputs = entry["outputs"]
    values = decode([_type(output) for output in outputs], bytes.fromhex(raw[2:]))
    named = [_named(output, value) for output, value in zip(outputs, values, strict=True)]
    return named[0] if len(named) == 1 else tuple(named)


def _read(raw: dict[str, Any]) -> Receipt:
    events = tuple(_event(log) for log in raw["logs"])
    return Receipt(gas=int(raw["gasUsed"], 16), block=int(raw["blockNumber"], 16), events=events)


def _event(log: dict[str, Any]) -> Event:
    topics = [bytes.fromhex(topic[2:]) for topic in log["topics"]]
    abi = _EVENTS[topics[0]]
    indexed = [entry for entry in abi["inputs"] if entry["indexed"]]
    plain = [entry for entry in abi["inputs"] if not entry["indexed"]]
    args = {entry["name"]: decode([entry["type"]], topic)[0] for entry, topic in zip(indexed, topics[1:], strict=True)}
    values = decode([_type(entry) for entry in plain], bytes.fromhex(log["data"][2:]))
    args |= {entry["name"]: _named(entry, value) for entry, value in zip(plain, values, strict=True)}
    return Event(name=abi["name"], args={name: _plain(value) for name, value in args.items()})


@cache
def _function(contract: Contract, name: str, count: int) -> Entry:
    (found,) = [
        entry
        for entry in artifact(contract).abi
        if entry["type"] == "function" and entry["name"] == name and len(entry["inputs"]) == count
    ]
    return Entry(found)


# Histories ask the same after every action, and most answers stay the same: coding them took a quarter of the time.
@lru_cache(maxsize=4096)
def _call_data(contract: Contract, function: str, arguments: tuple[Any, ...]) -> str:
    entry = _function(contract, function, len(arguments))
    return "0x" + (entry.selector + _encode(entry["inputs"], arguments)).hex()


@lru_cache(maxsize=4096)
def _known_outputs(contract: Contract, function: str, arguments: tuple[Any, ...], raw: str) -> Any:
    return _outputs(_function(contract, function, len(arguments)), raw)


class Entry(dict[str, Any]):
    """A function of an ABI, with its selector worked out once."""

    @cached_property
    def selector(self) -> bytes:
        """The first four bytes of a call's data."""
        return _signature(self)[:4]


def _signature(entry: Mapping[str, Any]) -> bytes:
    return keccak(text=f"{entry['name']}({','.join(_type(part) for part in entry['inputs'])})")


def _selector(entry: Mapping[str, Any]) -> bytes:
    return _signature(entry)[:4]


def _encode(inputs: list[Mapping[str, Any]], arguments: tuple[Any, ...]) -> bytes:
    values = [_ordered(entry, value) for entry, value in zip(inputs, arguments, strict=True)]
    return encode([_type(entry) for entry in inputs], values)


def _ordered(entry: Mapping[str, Any], value: Any) -> Any:
    if entry["type"] == "tuple" and isinstance(value, Mapping):
        return tuple(_ordered(part, value[part["name"]]) for part in entry["components"])
    if entry["type"] == "tuple[]":
        return [_ordered({**entry, "type": "tuple"}, item) for item in value]
    return value


def _type(entry: Mapping[str, Any]) -> str:
    if not entry["type"].startswith("tuple"):
        return str(entry["type"])
    inner = ",".join(_type(part) for part in entry["components"])
    return f"({inner}){entry['type'].removeprefix('tuple')}"


def _plain(value: Any) -> Any:
    if isinstance(value, str) and len(value) == 42 and value.startswith("0x"):
        return to_checksum_address(value)
    return value


class Record(dict[str, Any]):
    """A struct with its members as attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def _named(entry: Mapping[str, Any], value: Any) -> Any:
    if entry["type"] == "tuple":
        parts = zip(entry["components"], value, strict=True)
        return Record({part["name"]: _named(part, item) for part, item in parts})
    if entry["type"] == "tuple[]":
        return [_named({**entry, "type": "tuple"}, item) for item in value]
    return _plain(value)


_ABIS = [entry for contract in Contract for entry in artifact(contract).abi]
_ERRORS: dict[bytes, Mapping[str, Any]] = {
    _selector(entry): entry
    for entry in [
        *_ABIS,
        {"type": "error", "name": "Error", "inputs": [{"name": "reason", "type": "string"}]},
        {"type": "error", "name": "Panic", "inputs": [{"name": "code", "type": "uint256"}]},
    ]
    if entry["type"] == "error"
}
_EVENTS: dict[bytes, Mapping[str, Any]] = {_signature(entry): entry for entry in _ABIS if entry["type"] == "event"}
