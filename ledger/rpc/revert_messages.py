"""Messages and hints for the contracts' custom errors.

The key is the error's name. Arguments are filled in by name: amounts as MUST, times in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from ledger.amounts import format_amount
from ledger.errors import TransactionReverted
from protocol.identifiers import address

MESSAGES: Mapping[str, tuple[str, str]] = {
    "StakeTooLow": (
        "{asked} of the stake of {provider} is needed, and only {free} is free",
        "add stake (`muster stake add`), or wait until memberships end and open work is final",
    ),
    "TooManyUnbonds": ("{provider} has too many unbonds open", "withdraw or cancel some first: `muster stake status`"),
    "NoSuchUnbond": ("there is no open unbond {id}", "`muster stake status` lists the open unbonds"),
    "NothingMatured": ("no unbond has matured yet", "`muster stake status` shows when each unbond matures"),
    "ERC20InsufficientBalance": ("{sender} has {balance}, and {needed} is needed", "get MUST first"),
    "OwnableUnauthorizedAccount": ("{account} is not the governor", "use the governor's key"),
    "KeysNotApart": ("provider and node are the same key", "give the node a key of its own: `muster keys new node`"),
    "NodeTaken": (
        "{node} is registered by {provider}",
        "make a new key for your node; if that provider is you, `muster node update` changes its entry",
    ),
    "NotProvider": ("{node} is not a node of {caller}", "use the key of the provider that registered it"),
    "NoCapacity": ("a node needs a capacity of at least 1", "give --capacity"),
    "ConsentExpired": ("the node's consent has expired", "sign a new consent; check this machine's clock"),
    "BadConsent": ("the consent is not signed by {signer}", "both keys must sign the same values"),
    "NoSuchDomain": ("there is no domain {domainId}", "`muster ledger domain list` lists the domains"),
    "DomainClosed": ("domain {domainId} is closed or does not exist", "`muster ledger domain list` lists the domains"),
    "NoSuchPool": ("there is no pool {poolId}", "check --pool"),
    "ERC20InvalidReceiver": ("{receiver} can't hold MUST", "check the address"),
    "WrongStatus": ("the status is {status}, which does not allow this call", "the `show` command prints the status"),
    "NotOwner": ("{caller} does not own pool {poolId}", "use the owner's key"),
    "NotManager": ("{caller} is not the manager of pool {poolId}", "use the manager's key: `muster pool roles`"),
    "NotOperator": ("{caller} is not the orchestrator of pool {poolId}", "`muster pool roles` shows its key"),
    "NotOrchestrator": (
        "the lease is signed by {signer}, which is not the orchestrator of pool {poolId}",
        "lease a slot from the pool's own orchestrator",
    ),
    "NotPublisher": ("{caller} is not the publisher of pool {poolId}", "`muster pool roles` shows its key"),
    "NotValidator": ("this key is not a validator of pool {poolId}", "`muster pool roles` shows the validators"),
    "NotHolder": ("{caller} neither owns pool {poolId} nor holds that role", "`muster pool roles` shows both keys"),
    "NotOffered": ("pool {poolId} was not offered to {caller}", "its owner offers it with `muster pool transfer`"),
    "GraceTooLong": ("the previous key may stay valid until {latest} at most", "give a shorter --grace"),
    "NothingAsked": ("the amount is zero", "give an amount above zero"),
    "NoCommitment": ("the commitment is zero", "commit to the hash of a secret"),
    "RevealedAlready": (
        "the secret of epoch {epoch} was already revealed",
        "reveal each secret once",
    ),
    "EpochNotNewer": ("epoch {epoch} is not after {latest}", "commit to a later epoch"),
    "EpochNotOver": ("epoch {epoch} is not over", "commit to the next epoch first"),
    "WrongSecret": ("this is not the secret that was committed for epoch {epoch}", "reveal the committed secret"),
    "TextTooLong": ("the text has {length} bytes, and the limit is {limit}", "shorten it"),
    "BatchTooLong": ("the batch has {length} items, and the limit is {limit}", "send it in parts"),
    "EscrowTooLow": (
        "pool {poolId} has {free} free, and {asked} is needed",
        "fund the pool: `muster pool fund`",
    ),
    "InviteUsed": ("the invite was redeemed or cancelled before", "ask the pool for another invite"),
    "BadInvite": (
        "the invite is not signed by the orchestrator of pool {poolId}",
        "the invite was altered, or another key signed it: ask the pool for a new invite",
    ),
    "NodeNotWilling": ("the signature is not by {node}", "use the node's own key"),
    "SignatureExpired": (
        "the signature expired at {deadline}",
        "ask for a new signature; check that this machine's clock is right",
    ),
    "NotRegistered": ("{node} is not registered", "`muster node register` registers it"),
    "Banned": ("{who} is banned from pool {poolId}", "ask the pool's manager, who alone can lift the ban"),
    "TooSoon": (
        "work of a node of {provider} was forged: none of its nodes can join pool {poolId} before {until}",
        "wait until then",
    ),
    "NoticeTooShort": (
        "the notice period of {noticePeriod} s is too short: an active pool can't go below its present {least} s",
        "keep the notice period, or make another pool",
    ),
    "NotAnnounced": (
        "{asked} can't be withdrawn from pool {poolId} now: {announced} was announced, from {readyAt} to {lapsesAt}",
        "announce the withdrawal, and withdraw after the notice period: `muster pool withdraw`",
    ),
    "TooManyValidators": (
        "all {limit} validator seats of pool {poolId} are in use",
        "remove a validator; its seat becomes free one unbonding period after its end",
    ),
    "LookShareOutOfRange": ("the share of second looks is {lookBps} basis points", "give 0 to 10000"),
    "NotYourTurn": (
        "it is not the turn of {caller} to decide the dispute of work {key}",
        "`muster work show` shows from when on each validator may decide",
    ),
    "NoLookWanted": (
        "the pool does not pay for a second look at work {key}, or another validator has confirmed it already",
        "there is nothing to do",
    ),
    "OutcomeDiffers": (
        "the first verdict on work {key} has another outcome than this confirmation",
        "dispute the verdict instead of confirming it",
    ),
    "MemberAlready": ("{node} is a member of pool {poolId} already", "there is nothing to do"),
    "NotMember": ("{node} is not a member of pool {poolId}", "join first: `muster node join`"),
    "CapacityTooLow": (
        "{node} has capacity {capacity}, and the pool requires {least}",
        "register more capacity (`muster node update`), or join another pool",
    ),
    "PoolFull": ("pool {poolId} has its {maxNodes} members", "wait for a place, or join another pool"),
    "NotNodeNorProvider": ("{caller} is neither {node} nor its provider", "use one of their keys"),
    "BanUnchanged": ("the ban is set, or lifted, already", "there is nothing to do"),
    "NotNewer": (
        "version {latestVersion}, attempt {latestAttempt} is announced already",
        "announce a higher version, or a higher attempt of that version",
    ),
    "TooFarAhead": (
        "version {version} is too high: the highest that can be announced now is {highest}",
        "check the version: it is the number of training steps of its policy",
    ),
    "LeaseExpired": ("the lease expired at {expiry}", "lease a new slot"),
    "UnitsOutOfRange": (
        "the claim is {units} units, but the lease allows 1 to {maxUnits}",
        "claim units within this range",
    ),
    "WorkExists": ("work {key} was submitted before", "a lease allows one submission: lease a new slot"),
    "TooLate": ("the deadline for this call on work {key} was {deadline}", "the call is no longer possible"),
    "OtherSubmission": (
        "the verdict names another file or number of units than the submission",
        "a reorg replaced the submission: judge the submission that `muster work show` prints",
    ),
    "ConflictOfInterest": (
        "{caller} is the node or its provider, or has judged, confirmed or disputed this work before",
        "another validator must judge this work",
    ),
    "NotDisputant": ("{caller} may not dispute {key}", "the node, its provider or another validator may"),
    "NothingToClaim": ("{provider} has no unclaimed rewards", "rewards are paid when work is final"),
    "PenaltyTooLow": (
        "a penalty of {penaltyPerUnit} per unit does not deter at this audit floor; the least is {least}",
        "omit --penalty: the default is the lowest penalty that deters",
    ),
    "AuditFloorOutOfRange": ("the audit floor must be within 0.01 % and 100 %", "give another --audit-floor"),
    "PeriodMissing": ("every period must be at least a second", "give all periods"),
    "PeriodsTooLong": (
        "judge, challenge, dispute and notice period take {sum} s together, more than unbonding ({unbondingPeriod} s)",
        "shorten a period: stake must stay slashable until work is final",
    ),
}

_WORK_STATUSES = ("unknown", "submitted", "provisional", "disputed", "final", "expired")
_POOL_STATUSES = ("unknown", "pending", "active", "ended")

_MONEY = {"announced", "asked", "free", "balance", "needed", "penaltyPerUnit"}
_TIMES = {"deadline", "expiry", "lapsesAt", "readyAt", "until"}
_ADDRESS_LENGTH = 42
_LAST_SECOND = 253_402_300_799


def in_plain_words(error: TransactionReverted) -> TransactionReverted:
    """Returns the error with a readable detail and a hint; an unknown error is returned unchanged."""
    known = MESSAGES.get(error.name)
    if known is None:
        return error
    message, hint = known
    try:
        shown = {name: _format_argument(error.name, name, value) for name, value in error.arguments.items()}
        if error.name == "WrongStatus":
            shown["status"] = _status(error.arguments)
        detail = message.format_map(shown)
    except KeyError:
        return error  # two contracts may use one name for errors with different arguments
    plain = TransactionReverted(
        f"{detail} ({error.name})",
        name=error.name,
        arguments=error.arguments,
        data=error.data,
        transaction=error.transaction,
    )
    plain.hint = hint
    return plain


def name_in_plain_words(name: str) -> str:
    """Returns a message for an error whose arguments are unknown, as in events about refused batch items.

    Args:
        name: The custom error's name, with or without arguments in parentheses.
    """
    bare = name.partition("(")[0]
    known = MESSAGES.get(bare)
    if known is None:
        return name
    message, hint = known
    return f"{hint} ({bare})" if "{" in message else f"{message}: {hint} ({bare})"


def _status(arguments: Mapping[str, object]) -> str:
    """Returns the name of a status: of work if the error has a `key` argument, else of a pool."""
    kinds = _WORK_STATUSES if "key" in arguments else _POOL_STATUSES
    status = arguments.get("status")
    return kinds[status] if isinstance(status, int) and 0 <= status < len(kinds) else str(status)


def _format_argument(error: str, name: str, value: object) -> str:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, str) and value.startswith("0x") and len(value) == _ADDRESS_LENGTH:
        return address(value)
    if isinstance(value, int) and (name in _MONEY or (error, name) == ("PenaltyTooLow", "least")):
        return f"{format_amount(value)} MUST"
    if isinstance(value, int) and (name in _TIMES or (error, name) == ("GraceTooLong", "latest")):
        return datetime.fromtimestamp(min(value, _LAST_SECOND), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return str(value)
