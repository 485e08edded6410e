"""The contracts' errors in plain words: what it means, and what to do.

Names are the custom errors of the contracts; arguments are filled in by name, amounts as MUST and times in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from ledger.amounts import format_amount
from ledger.errors import TransactionReverted
from protocol.identifiers import address

WORDS: Mapping[str, tuple[str, str]] = {
    "StakeTooLow": (
        "{asked} is asked of the stake of {provider}, and only {free} is free",
        "add stake (`muster stake add`), or wait until memberships and open work let go of some",
    ),
    "TooManyUnbonds": ("{provider} has too many unbonds open", "withdraw or cancel some first: `muster stake status`"),
    "NoSuchUnbond": ("there is no open unbond {id}", "`muster stake status` lists those there are"),
    "NothingMatured": ("nothing has matured yet", "`muster stake status` says when it will"),
    "ERC20InsufficientBalance": ("{sender} has {balance}, and {needed} is needed", "get MUST first"),
    "OwnableUnauthorizedAccount": ("{account} is not the governor", "use the governor's key"),
    "KeysNotApart": ("provider and node are the same key", "give the node a key of its own: `muster keys new node`"),
    "NodeTaken": ("{node} belongs to {provider}", "make a new key for your node"),
    "NotProvider": ("{node} is not a node of {caller}", "use the key of the provider that registered it"),
    "NoCapacity": ("a node needs a capacity of at least 1", "give --capacity"),
    "ConsentExpired": ("the node's consent has expired", "sign a new one; check that this machine's clock is right"),
    "BadConsent": ("the consent is not signed by {signer}", "both keys must sign the same values"),
    "NoSuchDomain": ("there is no domain {domainId}", "`muster ledger domain list` shows those there are"),
    "DomainClosed": ("domain {domainId} is closed or does not exist", "`muster ledger domain list`"),
    "NoSuchPool": ("there is no pool {poolId}", "check --pool"),
    "ERC20InvalidReceiver": ("{receiver} can't hold MUST", "check the address"),
    "WrongStatus": ("it is {status}, so this can't be done now", "look at it with `show`"),
    "NotOwner": ("{caller} does not own pool {poolId}", "use the owner's key"),
    "NotManager": ("{caller} is not the manager of pool {poolId}", "use the manager's key: `muster pool roles`"),
    "NotOperator": ("{caller} is not the orchestrator of pool {poolId}", "`muster pool roles` says who is"),
    "NotOrchestrator": ("{signer} is not the orchestrator of pool {poolId}", "ask the pool for a lease of its own key"),
    "NotPublisher": ("{caller} is not the publisher of pool {poolId}", "`muster pool roles` says who is"),
    "NotValidator": ("this key is not a validator of pool {poolId}", "`muster pool roles` says who is"),
    "NotHolder": ("{caller} neither owns pool {poolId} nor holds that role", "`muster pool roles` says who does"),
    "NotOffered": ("pool {poolId} was not offered to {caller}", "its owner offers it with `muster pool transfer`"),
    "GraceTooLong": ("the former key may count until {latest} at most", "give a shorter --grace"),
    "NothingAsked": ("the amount is zero", "give an amount above zero"),
    "EpochNotNewer": ("epoch {epoch} is not after {latest}", "commit to a later epoch"),
    "EpochNotOver": ("epoch {epoch} is not over", "commit to the next epoch first"),
    "WrongSecret": ("this is not the secret that was committed for epoch {epoch}", "reveal the one that was"),
    "TextTooLong": ("a text of {length} bytes, where {limit} are the most", "shorten it"),
    "BatchTooLong": ("a batch of {length}, where {limit} are the most", "send it in parts"),
    "EscrowTooLow": (
        "pool {poolId} has {free} free, and {asked} is needed",
        "fund the pool: `muster pool fund`",
    ),
    "InviteUsed": ("the invite was redeemed or cancelled before", "ask the pool for another"),
    "BadInvite": (
        "the invite is not signed by the orchestrator of pool {poolId}",
        "it was altered, or is from somebody else: ask the pool for another",
    ),
    "NodeNotWilling": ("{node} did not sign this", "use the node's own key"),
    "SignatureExpired": ("it expired at {deadline}", "ask for another; check that this machine's clock is right"),
    "NotRegistered": ("{node} is not registered", "`muster node register` registers it"),
    "Banned": ("{who} is banned from pool {poolId}", "only the pool's manager can lift that: ask there"),
    "TooSoon": (
        "work of a node of {provider} was forged: none of its nodes joins pool {poolId} before {until}",
        "wait until then",
    ),
    "NoticeTooShort": (
        "a notice period of {noticePeriod} s, and that of an active pool never becomes shorter than {least} s",
        "keep the notice period, or make another pool",
    ),
    "NotAnnounced": (
        "{asked} can't be withdrawn from pool {poolId}: {announced} is announced, between {readyAt} and {lapsesAt}",
        "announce it, and withdraw it after the notice period: `muster pool withdraw`",
    ),
    "TooManyValidators": (
        "pool {poolId} has all of its {limit} seats for validators",
        "remove one; its seat is free one unbonding period after its end",
    ),
    "LookShareOutOfRange": ("a look share of {lookBps} basis points", "give 0 to 10000"),
    "NotYourTurn": (
        "it is not the turn of {caller} to decide the dispute of work {key}",
        "`muster work show` says from when on each validator may decide",
    ),
    "NoLookWanted": (
        "the terms pay for no second look at work {key}, or another validator has looked already",
        "there is nothing to do",
    ),
    "OutcomeDiffers": (
        "the verdict on work {key} has another outcome than the look",
        "dispute it instead of confirming it",
    ),
    "MemberAlready": ("{node} is a member of pool {poolId} already", "there is nothing to do"),
    "NotMember": ("{node} is not a member of pool {poolId}", "join first: `muster node join`"),
    "CapacityTooLow": (
        "{node} has capacity {capacity}, and the pool wants {least}",
        "register more capacity (`muster node update`), or join another pool",
    ),
    "PoolFull": ("pool {poolId} has its {maxNodes} members", "wait for a place, or join another pool"),
    "NotNodeNorProvider": ("{caller} is neither {node} nor its provider", "use one of their keys"),
    "BanUnchanged": ("that ban stands, or is lifted, already", "there is nothing to do"),
    "NotNewer": (
        "version {latestVersion}, attempt {latestAttempt} is announced already",
        "versions never go back: announce a higher version, or a higher attempt of that one",
    ),
    "TooFarAhead": (
        "version {version} is too far ahead: the run may go up to version {highest} now",
        "a version's number is the steps that its policy has learned: check it",
    ),
    "LeaseExpired": ("the lease expired at {expiry}", "lease a new slot"),
    "UnitsOutOfRange": ("{units} units, where the lease allows 1 to {maxUnits}", "submit what the lease allows"),
    "WorkExists": ("work {key} was submitted before", "a lease is good for one submission: lease a new slot"),
    "TooLate": ("the time for that ended at {deadline}", "nothing can be done about it any more"),
    "OtherSubmission": (
        "the verdict is on another file, or on other units, than what was submitted",
        "the chain was reorganised: judge what is submitted now, `muster work show`",
    ),
    "ConflictOfInterest": (
        "{caller} gave the first verdict, opened the dispute, or answers for the node",
        "another validator must judge this",
    ),
    "NotDisputant": ("{caller} may not dispute {key}", "the node, its provider or another validator may"),
    "NothingToClaim": ("{provider} has earned nothing that it has not claimed", "rewards come when work is final"),
    "PenaltyTooLow": (
        "a penalty of {penaltyPerUnit} per unit does not deter at this audit floor; the least is {least}",
        "leave --penalty out: the least that deters is taken",
    ),
    "AuditFloorOutOfRange": ("the audit floor must be within 0.01 % and 100 %", "give another --audit-floor"),
    "PeriodMissing": ("every period must be at least a second", "give all periods"),
    "PeriodsTooLong": (
        "judging, challenge, dispute and notice take {sum} s together, longer than stake unbonds ({unbondingPeriod} s)",
        "shorten a period: stake must not be gone before work is judged",
    ),
}

_WORK_STATUSES = ("unknown", "submitted", "provisional", "disputed", "final", "expired")
_POOL_STATUSES = ("unknown", "pending", "active", "ended")

_MONEY = {"announced", "asked", "free", "balance", "needed", "penaltyPerUnit"}
_TIMES = {"deadline", "expiry", "lapsesAt", "readyAt", "until"}
_ADDRESS_LENGTH = 42
_LAST_SECOND = 253_402_300_799


def in_plain_words(error: TransactionReverted) -> TransactionReverted:
    """The same error with a detail and a hint for people; unknown names keep the contract's own words."""
    known = WORDS.get(error.name)
    if known is None:
        return error
    words, hint = known
    try:
        shown = {name: _shown(error.name, name, value) for name, value in error.arguments.items()}
        if error.name == "WrongStatus":
            shown["status"] = _status(error.arguments)
        detail = words.format_map(shown)
    except KeyError:
        return error  # two contracts may give one name to errors with other arguments
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
    """What an error's name alone says to people: batches tell no more of an item that they refused.

    Args:
        name: The custom error's, with or without arguments in parentheses.
    """
    bare = name.partition("(")[0]
    known = WORDS.get(bare)
    if known is None:
        return name
    words, hint = known
    return f"{hint} ({bare})" if "{" in words else f"{words}: {hint} ({bare})"


def _status(arguments: Mapping[str, object]) -> str:
    """The word for a status: of work, whose error names its key, or of a pool."""
    kinds = _WORK_STATUSES if "key" in arguments else _POOL_STATUSES
    status = arguments.get("status")
    return kinds[status] if isinstance(status, int) and 0 <= status < len(kinds) else str(status)


def _shown(error: str, name: str, value: object) -> str:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, str) and value.startswith("0x") and len(value) == _ADDRESS_LENGTH:
        return address(value)
    if isinstance(value, int) and (name in _MONEY or (error, name) == ("PenaltyTooLow", "least")):
        return f"{format_amount(value)} MUST"
    if isinstance(value, int) and (name in _TIMES or (error, name) == ("GraceTooLong", "latest")):
        return datetime.fromtimestamp(min(value, _LAST_SECOND), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return str(value)
