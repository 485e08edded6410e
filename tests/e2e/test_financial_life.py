"""A contributor's complete course on a running devnet by commands: from a key to the returned stake."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.kit.devnet import Devnet

URL = "https://orchestrator.example"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


def lease_and_carry(devnet: Devnet, files: Path, index: int, *, units: int = 4096) -> str:
    """Leases, submits work for the node through a relay, and returns its key."""
    result, lease, signed = (files / f"{index}.{kind}" for kind in ("parquet", "lease", "signed"))
    result.write_text(f"rollouts {index}")
    devnet.muster("work", "lease", "mine", "--index", str(index), "--out", str(lease))
    devnet.muster("work", "sign", str(lease), str(result), "--units", str(units), "--out", str(signed), "--key", "mine")
    return devnet.muster("work", "carry", str(signed)).out.strip()


def work(devnet: Devnet, key: str) -> dict[str, str]:
    found: dict[str, str] = devnet.muster("work", "show", key, "--json").json()
    return found


def first_to_decide(devnet: Devnet, key: str) -> str:
    """Returns the name of the validator whose turn is first in a dispute."""
    turns = devnet.muster("work", "show", key, "--json").json()["may_decide"]
    names = {row["address"]: row["name"] for row in devnet.muster("keys", "list", "--json").json()}
    return str(names[turns[0].split(" from ")[0]])


def active_stake(devnet: Devnet) -> int:
    return int(devnet.muster("stake", "status", "me", "--json").json()["active"])


def test_stake_escrow_work_and_rewards_run_through_the_command_line(devnet: Devnet, files: Path) -> None:
    muster = devnet.muster

    # Create keys; the governor sends some tokens.
    me = muster("keys", "new", "me", "--light", "--json").json()["address"]
    muster("keys", "new", "mine", "--light")
    muster("ledger", "mint", "me", "200")
    gas = muster("ledger", "balance", "provider", "--json").json()
    assert int(gas["coin_for_gas"]) > 0

    # Create a pool as an owner would; the devnet's is pool 1.
    assert (
        "pool 2 is active"
        in muster(
            "pool",
            "create",
            "--validator",
            "validator",
            "--judge-period",
            "30",
            "--challenge-period",
            "5",
            "--dispute-period",
            "20",
            "--notice-period",
            "30",
        ).out
    )
    muster("pool", "fund", "10", "--pool", "2")
    muster("pool", "end", "--yes", "--pool", "2")
    assert "announced a withdrawal of 10 MUST" in muster("pool", "withdraw", "--yes", "--pool", "2").out
    assert "is ready at" in muster("pool", "withdraw", "--yes", "--pool", "2", expect=1).err
    devnet.warp(timedelta(seconds=31))
    assert "withdrew 10 MUST" in muster("pool", "withdraw", "--yes", "--pool", "2").out

    # The provider needs the chain's coin for its own transactions; the error says so to a caller without any.
    said = muster("stake", "add", "100", "--key", "me", expect=1)
    assert "insufficient funds" in said.err.lower()
    assert f"key me ({me})" in said.err
    devnet.give_coin(me)

    # Stake, register, join by invite; the node itself never pays gas.
    muster("stake", "add", "100", "--key", "me")
    muster("node", "register", "--node-key", "mine", "--capacity", "2", "--key", "me")
    again = muster("node", "register", "--node-key", "mine", "--capacity", "2", "--key", "me", expect=1)
    assert "already registered by you" in again.err
    assert "muster node update" in again.err
    invite = files / "invite.json"
    muster("pool", "invite", "mine", "--url", URL, "--out", str(invite))
    muster("node", "join", str(invite), "--key", "mine", "--carrier", "orchestrator")
    assert muster("node", "show", "mine", "--json").json()["member"] is True
    assert (
        "redeemed or cancelled"
        in muster("node", "join", str(invite), "--key", "mine", "--carrier", "orchestrator", expect=1).err
    )
    altered = json.loads(invite.read_text()) | {"url": "https://evil.example", "nonce": "7"}
    invite.write_text(json.dumps(altered))
    assert (
        "not signed by the orchestrator"
        in muster("node", "join", str(invite), "--key", "mine", "--carrier", "orchestrator", expect=1).err
    )

    # Accepted and undisputed: paid.
    paid = lease_and_carry(devnet, files, 0)
    muster("work", "judge", paid, "accepted")
    # Forged by the first verdict; the node disputes, another validator accepts: paid at once.
    cleared = lease_and_carry(devnet, files, 1)
    muster("work", "judge", cleared, "forged", "--reason", "801")
    muster("work", "dispute", cleared, "--key", "mine", "--carrier", "orchestrator")
    assert "ConflictOfInterest" in muster("work", "judge", cleared, "forged", "--decisive", expect=1).err
    assert "WrongStatus" in muster("work", "judge", cleared, "accepted", "--key", "validator-2", expect=1).err
    other_file = ("--file", str(invite), "--decisive", "--key", "validator-2")
    assert "submitted another file" in muster("work", "judge", cleared, "forged", *other_file, expect=1).err
    muster("work", "judge", cleared, "accepted", "--decisive", "--key", first_to_decide(devnet, cleared))
    assert work(devnet, cleared)["status"] == "final"
    # Accepted by the first verdict; another validator disputes, a third rejects: unpaid.
    undone = lease_and_carry(devnet, files, 2)
    muster("work", "judge", undone, "accepted")
    muster("work", "dispute", undone, "--key", "validator-2")
    muster("work", "judge", undone, "rejected", "--decisive", "--key", "validator-3")
    assert work(devnet, undone)["verdict"] == "rejected"
    # Not judged: expired without blame.
    forgotten = lease_and_carry(devnet, files, 3)

    devnet.warp(timedelta(seconds=61))
    muster("work", "finalize", paid, forgotten)
    assert work(devnet, paid)["status"] == "final"
    assert work(devnet, forgotten)["status"] == "expired"
    assert active_stake(devnet) == 100 * 10**18
    assert "claimed 0.8192 MUST" in muster("work", "claim", "--key", "me").out
    assert "no unclaimed rewards" in muster("work", "claim", "--key", "me", expect=1).err

    # Forged and undisputed: stake and membership are lost.
    forged = lease_and_carry(devnet, files, 4)
    muster("work", "judge", forged, "forged", "--reason", "700", "--key", "validator-3")
    devnet.warp(timedelta(seconds=16))
    muster("work", "finalize", forged)
    assert active_stake(devnet) == 100 * 10**18 - 36_864 * 10**14
    assert muster("node", "show", "mine", "--json").json()["member"] is False
    listed = {row["key"]: row["verdict"] for row in muster("work", "list", "--json").json()}
    assert listed == {paid: "accepted", cleared: "accepted", undone: "rejected", forgotten: None, forged: "forged"}

    # Join again by another invite after a pause, then leave for good and withdraw the remaining stake.
    muster("pool", "invite", "mine", "--url", URL, "--out", str(invite))
    muster("node", "join", str(invite), "--key", "mine", "--carrier", "orchestrator", expect=1)
    devnet.warp(timedelta(minutes=5))
    muster("pool", "invite", "mine", "--url", URL, "--out", str(invite))
    muster("node", "join", str(invite), "--key", "mine", "--carrier", "orchestrator")
    muster("node", "leave", "--yes", "--key", "mine", "--carrier", "orchestrator")
    muster("stake", "unbond", "96.3136", "--key", "me")
    assert "no unbond has matured" in muster("stake", "withdraw", "--key", "me", expect=1).err
    devnet.warp(timedelta(seconds=161))
    assert "withdrew 96.3136 MUST" in muster("stake", "withdraw", "--key", "me").out
    assert int(muster("ledger", "balance", "me", "--json").json()["must"]) == 10**18 * 200 - (36_864 - 8_192) * 10**14


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["stake", "add", "many"], 1, "is not an amount of MUST"),
        (["stake", "status", "nobody"], 1, "neither an address nor a key"),
        (["stake", "status", "0x00"], 1, "is not an address"),
        (["pool", "show", "--pool", "99"], 1, "there is no pool 99"),
        (["pool", "create", "--penalty", "0"], 1, "does not deter"),
        (["pool", "create", "--audit-floor", "2"], 2, "--audit-floor"),
        (["pool", "fund", "10", "--key", "ghost"], 1, "there is no key called ghost"),
        (["pool", "roles", "--set", "manager"], 1, "--set needs --to"),
        (["work", "judge", "0x" + "00" * 32, "perhaps"], 1, "is not a verdict"),
        (["work", "judge", "0x12", "forged"], 1, "is not a 32-byte digest"),
        (["work", "judge", "0x" + "00" * 32, "forged"], 1, "no work has the key"),
        (["ledger", "mint", "owner", "1", "--key", "owner"], 1, "is not the governor"),
        (["node", "join", "/no/such/file"], 2, "does not exist"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_a_mistake_is_reported_without_a_traceback(devnet: Devnet, arguments: list[str], code: int, words: str) -> None:
    said = devnet.muster(*arguments, expect=code)
    assert words in said.err.replace("\n", " ")
    assert "Traceback" not in said.err


def test_every_list_command_prints_json(devnet: Devnet) -> None:
    for command in (
        "keys list",
        "pool show",
        "pool economics",
        "pool roles",
        "ledger status",
        "ledger domain list",
        "config",
        "stake status owner",
    ):
        assert devnet.muster(*command.split(), "--json").json()
