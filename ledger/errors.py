"""What can go wrong between us and a chain.

MusterError
├── Unavailable
│   ├── ChainUnavailable       down, slow, or not a JSON-RPC endpoint          retryable
│   │   └── AnswerTooBig       the node refuses a query of this size           ask for less
│   ├── TransactionNotMined    the deadline passed first; it may still happen  retryable, with the same intent
│   ├── WrongChain             another chain than the one expected
│   ├── AnvilMissing           the development chain's binary is not there
│   ├── NoFreePort             whatever is started here would have nowhere to listen
│   └── CursorTooOld           a reorg went deeper than what the cursor remembers
└── Conflict
    ├── TransactionReverted    the contract said no; `name` and `arguments` say how
    ├── InsufficientFunds      the account can't pay for gas and value
    ├── NonceTaken             another sender with the same key used the nonce
    └── ChainRefused           the node took the question and declined
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import Conflict, Unavailable


class ChainUnavailable(Unavailable):
    """The chain is down, slow, or not a JSON-RPC endpoint."""

    code = "chain-unavailable"
    default_hint = "check the chain's URL and that its node is running"


class AnswerTooBig(ChainUnavailable):
    """The node refuses a query that would return so much."""

    code = "chain-answer-too-big"
    default_hint = "ask for fewer blocks at a time"


class TransactionNotMined(Unavailable):
    """The deadline passed before the transaction was in a block. It may still be mined later.

    Args:
        detail: Which transaction, and how long was waited.
        hashes: Every version of it that was sent, 0x-prefixed; at most one of them can ever be mined.
        nonce: The nonce that all of them use.
    """

    code = "transaction-not-mined"
    default_hint = "look the hashes up before sending the same intent again"

    def __init__(self, detail: str, *, hashes: tuple[str, ...] = (), nonce: int | None = None) -> None:
        super().__init__(detail)
        self.hashes = hashes
        self.nonce = nonce


class WrongChain(Unavailable):
    """The endpoint serves another chain than the one expected."""

    code = "wrong-chain"
    retryable = False
    default_hint = "check the URL and the chain id in the settings: one of them belongs to another network"


class AnvilMissing(Unavailable):
    """There is no anvil binary."""

    code = "anvil-missing"
    retryable = False
    default_hint = "npm install --prefix .tools @foundry-rs/anvil, set MUSTER_ANVIL, or use the embedded chain"


class NoFreePort(Unavailable):
    """Whatever is started here would have nowhere to listen."""

    code = "no-free-port"
    default_hint = "see with `ss -tln` what listens on them, and stop what is not needed"


class CursorTooOld(Unavailable):
    """The chain was reorganised deeper than the cursor remembers blocks."""

    code = "cursor-too-old"
    retryable = False
    default_hint = "raise the cursor's memory or its confirmations, and read again from the start block"


class TransactionReverted(Conflict):
    """A contract refused the call.

    Args:
        detail: What was called and how it failed.
        name: The custom error's name, `Error` or `Panic`; empty if the contract gave no data that we can read.
        arguments: The error's arguments by name.
        data: What the contract gave back, 0x-prefixed.
        transaction: The mined transaction's hash; None if it failed before it was sent, which cost nothing.
    """

    code = "transaction-reverted"
    default_hint = "the error's name says which rule of the contract was broken"

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
    """Another sender with the same key used the nonce; ours can't be mined any more."""

    code = "nonce-taken"
    retryable = True


class ChainRefused(Conflict):
    """The node understood and declined."""

    code = "chain-refused"
