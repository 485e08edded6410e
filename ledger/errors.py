"""Errors of the chain connection, transactions and event cursors.

MusterError
├── Unavailable
│   ├── ChainUnavailable       down, slow, or not a JSON-RPC endpoint          retryable
│   │   └── AnswerTooBig       the node refuses a query of this size           ask for less
│   ├── TransactionNotMined    the deadline passed; it may still be mined      retryable after a check of `hashes`
│   ├── WrongChain             another chain than the expected one
│   ├── AnvilMissing           there is no anvil binary
│   ├── NoFreePort             there is no free port for a development chain
│   └── CursorTooOld           a reorg is deeper than the blocks that the cursor remembers
└── Conflict
    ├── TransactionReverted    the contract reverted; see `name` and `arguments`
    ├── InsufficientFunds      the account can't pay for gas and value
    ├── NonceTaken             another sender with the same key used the nonce
    └── ChainRefused           the node refused the request
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import Conflict, Unavailable


class ChainUnavailable(Unavailable):
    """The chain is down, slow, or not a JSON-RPC endpoint."""

    code = "chain-unavailable"
    default_hint = "check the chain's URL and that its node is running"


class AnswerTooBig(ChainUnavailable):
    """The node refuses a query of this size, or its response is too large."""

    code = "chain-answer-too-big"
    default_hint = "ask for fewer blocks at a time"


class TransactionNotMined(Unavailable):
    """The deadline passed before the transaction was in a block. It may still be mined later.

    Args:
        detail: The transaction, and how long the sender waited.
        hashes: Hash of every version of the transaction that was sent, 0x-prefixed. At most one can ever be mined.
        nonce: The nonce of all versions.
    """

    code = "transaction-not-mined"
    default_hint = "look the hashes up before you send the same call again"

    def __init__(self, detail: str, *, hashes: tuple[str, ...] = (), nonce: int | None = None) -> None:
        super().__init__(detail)
        self.hashes = hashes
        self.nonce = nonce


class WrongChain(Unavailable):
    """The endpoint serves another chain than the expected one."""

    code = "wrong-chain"
    retryable = False
    default_hint = "check the URL and the chain id in the settings: one of them belongs to another network"


class AnvilMissing(Unavailable):
    """There is no anvil binary."""

    code = "anvil-missing"
    retryable = False
    default_hint = "npm install --prefix .tools @foundry-rs/anvil, set MUSTER_ANVIL, or use the embedded chain"


class NoFreePort(Unavailable):
    """There is no free port for a process that is to be started."""

    code = "no-free-port"
    default_hint = "`ss -tln` lists the ports in use; stop programs that are not needed"


class CursorTooOld(Unavailable):
    """A reorg is deeper than the blocks that the cursor remembers."""

    code = "cursor-too-old"
    retryable = False
    default_hint = "raise the cursor's memory or its confirmations, and read again from the start block"


class TransactionReverted(Conflict):
    """A contract reverted the call.

    Args:
        detail: The call and the decoded error.
        name: Name of the custom error, `Error` or `Panic`; empty if the revert data can't be decoded.
        arguments: The error's arguments by name.
        data: The revert data, 0x-prefixed.
        transaction: Hash of the mined transaction; None if it was never sent and cost nothing.
    """

    code = "transaction-reverted"
    default_hint = "the error's name tells which rule of the contract the call broke"

    def __init__(
        self,
        detail: str,
        *,
        name: str = "",
        arguments: Mapping[str, object] | None = None,
        data: str = "0x",
        transaction: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.name = name
        self.arguments = dict(arguments or {})
        self.data = data
        self.transaction = transaction


class InsufficientFunds(Conflict):
    """The account can't pay for the gas and the value."""

    code = "insufficient-funds"
    default_hint = "send the chain's native coin to this account"


class NonceTaken(Conflict):
    """Another sender with the same key used the nonce, so this transaction can't be mined any more."""

    code = "nonce-taken"
    retryable = True


class ChainRefused(Conflict):
    """The node refused the request."""

    code = "chain-refused"
