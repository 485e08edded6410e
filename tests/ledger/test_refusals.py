"""The plain-language messages of contract errors match the contracts."""

from __future__ import annotations

import re

import pytest

from ledger.artifacts import Contract, artifact
from ledger.client.pools import PoolStatus
from ledger.client.work import WorkStatus
from ledger.errors import TransactionReverted
from ledger.rpc.revert_messages import MESSAGES, in_plain_words, name_in_plain_words

ERRORS = {
    (entry["name"], tuple(item["name"] for item in entry["inputs"]))
    for contract in Contract
    for entry in artifact(contract).abi
    if entry["type"] == "error"
}


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_every_message_belongs_to_a_contract_error_and_uses_its_arguments(name: str) -> None:
    used = set(re.findall(r"\{(\w+)\}", MESSAGES[name][0]))
    assert any(used <= set(arguments) for known, arguments in ERRORS if known == name)
    assert MESSAGES[name][1], "the message must say what to do"


def test_amounts_and_times_are_formatted_for_people() -> None:
    arguments = {"provider": "0x1", "free": 10**18, "asked": 5 * 10**17}
    plain = in_plain_words(TransactionReverted("x", name="StakeTooLow", arguments=arguments))
    assert plain.detail.startswith("0.5 MUST of the stake of 0x1 is needed, and only 1 MUST is free")
    late = in_plain_words(TransactionReverted("x", name="TooLate", arguments={"key": b"", "deadline": 0}))
    assert "1970-01-01 00:00:00 UTC" in late.detail
    never = in_plain_words(TransactionReverted("x", name="TooLate", arguments={"key": b"", "deadline": 2**255}))
    assert "9999-12-31" in never.detail


@pytest.mark.parametrize("name", ["", "NobodyKnows"])
def test_an_unknown_error_keeps_its_message(name: str) -> None:
    error = TransactionReverted("as the contract said", name=name)
    assert in_plain_words(error) is error


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"key": b"", "status": WorkStatus.DISPUTED}, "disputed"),
        ({"key": b"", "status": WorkStatus.EXPIRED}, "expired"),
        ({"key": b"", "status": 0}, "unknown"),
        ({"poolId": 1, "status": PoolStatus.ENDED}, "ended"),
        ({"poolId": 1, "status": 77}, "77"),
    ],
)
def test_a_wrong_status_is_reported_by_name(arguments: dict[str, object], word: str) -> None:
    said = in_plain_words(TransactionReverted("x", name="WrongStatus", arguments=arguments))
    assert f"the status is {word}," in said.detail


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_message_without_arguments_has_no_placeholders(name: str) -> None:
    told = name_in_plain_words(f"{name}()")
    assert told.endswith(f"({name})")
    assert MESSAGES[name][1] in told
    assert "{" not in told


def test_an_unknown_error_name_is_returned_unchanged() -> None:
    assert name_in_plain_words("NobodyKnows()") == "NobodyKnows()"
