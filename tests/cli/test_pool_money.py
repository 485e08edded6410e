"""An owner's commands for a pool's money and terms, and their effects for others, on real contracts."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from web3.types import RPCEndpoint, RPCResponse

from cli.output.values import Must
from cli.worker.rewards import read_earnings
from ledger.amounts import UNIT, format_amount
from ledger.client import Ledger
from ledger.events.types import ProviderBanned
from protocol.leases import SlotSalt
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.leases import SignedLease
from tests.kit.chain import development_chain, development_process
from tests.kit.command_line import run_muster
from tests.kit.verdicts import verdict_on
from tests.kit.world import POOL, TERMS, World, founded, world

__all__ = ["development_chain", "development_process", "founded", "world"]  # fixtures

SECOND = timedelta(seconds=1)
OWN = ("pool", "create", "--domain", "1", "--price", "0.01")


@dataclass
class Terminal:
    """A user with every key who runs `muster …`."""

    world: World
    config: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    async def muster(self, *words: str, expect: int = 0) -> str:
        """Returns standard output and errors."""
        self.capsys.readouterr()
        status = await asyncio.to_thread(run_muster, self.monkeypatch, "--config", str(self.config), *words)
        written = self.capsys.readouterr()
        said = " ".join((written.out + written.err).split())
        assert status == expect, said
        return said

    async def asks(self, *words: str) -> Any:
        return json.loads(await self.muster(*words, "--json"))

    async def balance(self) -> int:
        ledger = await self.world.as_("owner")
        return await ledger.token.balance_of(ledger.address)


@pytest.fixture
def terminal(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Terminal:
    world.deployment.save(tmp_path / "deployment.json")
    config = tmp_path / "muster.toml"
    chain = f'[chain]\nrpc = "{world.url}"\ndeployment = "deployment.json"\n'
    config.write_text(f'{chain}[pool]\nid = {POOL}\n[keys]\ndirectory = "keys"\n')
    for name, key in world.keys.items():
        monkeypatch.setenv(f"MUSTER_{name.upper().replace('-', '_')}_KEY", key.reveal().hex())
    monkeypatch.setenv("COLUMNS", "300")
    return Terminal(world, config, capsys, monkeypatch)


# Leaving


@pytest.mark.parametrize("carrier", [(), ("--carrier", "provider")], ids=["node pays", "carrier pays"])
async def test_a_node_that_the_pool_removed_before_has_left(terminal: Terminal, carrier: tuple[str, ...]) -> None:
    assert "NotMember" in await terminal.muster("node", "leave", "--yes", *carrier, expect=1)
    await terminal.world.member()
    orchestrator = await terminal.world.as_("orchestrator")
    await orchestrator.pools.remove(POOL, [terminal.world.keys["node"].address], "silent")
    assert f"no longer a member of pool {POOL}" in await terminal.muster("node", "leave", "--yes", *carrier)


# Withdrawing


async def test_escrow_is_withdrawn_after_its_announcement_and_the_notice_period(terminal: Terminal) -> None:
    before = await terminal.balance()
    said = await terminal.muster("pool", "withdraw", "--yes", "60")
    assert "announced a withdrawal of 60 MUST: run this command again between" in said
    shown = await terminal.asks("pool", "show")
    assert shown["announced_withdrawal"] == str(60 * UNIT)
    assert shown["withdrawal_ready_at"][:10] in said
    said = await terminal.muster("pool", "withdraw", "--yes", expect=1)
    assert "the withdrawal of 60 MUST is ready at" in said
    assert await terminal.balance() == before
    await terminal.world.warp(TERMS.notice_period + SECOND)
    said = await terminal.muster("pool", "withdraw", "--yes", "61", expect=1)
    assert "60 MUST can be withdrawn now, not 61" in said
    assert "withdrew 25 MUST" in await terminal.muster("pool", "withdraw", "--yes", "25")
    assert "withdrew 35 MUST" in await terminal.muster("pool", "withdraw", "--yes")
    assert await terminal.balance() == before + 60 * UNIT
    assert "announced_withdrawal" not in await terminal.asks("pool", "show")


async def test_an_announced_withdrawal_can_be_cancelled(terminal: Terminal) -> None:
    assert "has announced no withdrawal" in await terminal.muster("pool", "withdraw", "--cancel", expect=1)
    assert "announced a withdrawal of 100 MUST" in await terminal.muster("pool", "withdraw", "--yes")
    assert "cancelled" in await terminal.muster("pool", "withdraw", "--cancel")
    assert "announced_withdrawal" not in await terminal.asks("pool", "show")
    assert "excludes an amount" in await terminal.muster("pool", "withdraw", "5", "--cancel", expect=1)


async def test_a_lapsed_announcement_is_replaced_by_a_new_one(terminal: Terminal) -> None:
    await terminal.muster("pool", "withdraw", "--yes", "60")
    await terminal.world.warp(2 * TERMS.notice_period + SECOND)
    assert "announced a withdrawal of 40 MUST: run this command again between" in await terminal.muster(
        "pool", "withdraw", "--yes", "40"
    )


async def test_a_withdrawal_leaves_what_open_work_has_reserved(terminal: Terminal) -> None:
    world = terminal.world
    await world.member()
    await terminal.muster("pool", "withdraw", "--yes")
    await world.submitted(units=100)
    await world.warp(TERMS.notice_period + SECOND)
    free = 99 * UNIT - TERMS.reserved_fees
    assert f"withdrew {format_amount(free)} MUST" in await terminal.muster("pool", "withdraw", "--yes")


async def test_an_empty_pool_has_nothing_to_withdraw_and_a_pending_pool_pays_back_at_once(terminal: Terminal) -> None:
    await terminal.muster(*OWN, "--no-activate")
    assert "pool 2 has no free escrow" in await terminal.muster("pool", "withdraw", "--yes", "--pool", "2", expect=1)
    await terminal.muster("pool", "fund", "7", "--pool", "2")
    assert "withdrew 7 MUST" in await terminal.muster("pool", "withdraw", "--yes", "--pool", "2")


# Creating and showing


async def test_fees_and_look_share_are_set_as_terms_and_shown(terminal: Terminal) -> None:
    await terminal.muster(*OWN, "--verdict-fee", "0.002", "--look-share", "0.25")
    terms = await (await terminal.world.as_("owner")).pools.terms(2)
    assert (terms.verdict_fee, terms.look_bps) == (UNIT // 500, 2_500)
    shown = await terminal.asks("pool", "show", "--pool", "2")
    assert (shown["verdict_fee"], shown["paid_second_looks"], shown["validators"]) == (str(UNIT // 500), "25 %", 0)


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        (("--notice-period", "599"), ("shorter than the default lease of 600 s",)),
        (("--notice-period", "600"), ()),
    ],
)
async def test_a_notice_period_shorter_than_a_lease_causes_a_warning(
    terminal: Terminal, options: tuple[str, ...], warnings: tuple[str, ...]
) -> None:
    four = [word for name in ("validator", "second", "third", "manager") for word in ("--validator", name)]
    said = await terminal.muster(*OWN, *four, *options)
    assert "pool 2 is active" in said
    assert ("warning" in said.lower()) is bool(warnings)
    assert all(words in said for words in warnings)


@pytest.mark.parametrize(
    ("validators", "words"),
    [
        (("validator", "second"), "some disputes have no judge"),
        (("validator", "second", "third"), "one validator alone can overturn"),
    ],
)
async def test_too_few_validators_cause_a_warning(terminal: Terminal, validators: tuple[str, ...], words: str) -> None:
    named = [word for name in validators for word in ("--validator", name)]
    assert words in await terminal.muster(*OWN, *named)


async def test_the_pool_list_shows_how_work_of_each_pool_ended(terminal: Terminal) -> None:
    world = terminal.world
    await world.member()
    accepted, rejected, *silent = [await world.submitted(index=index) for index in range(4)]
    validator, owner = await world.as_("validator"), await world.as_("owner")
    await validator.work.judge(
        [
            await verdict_on(validator, accepted, Outcome.ACCEPTED),
            await verdict_on(validator, rejected, Outcome.REJECTED, reason=ReasonCode.FORMAT_SCHEMA),
        ]
    )
    await world.warp(max(TERMS.judge_period, TERMS.challenge_period) + SECOND)
    await validator.work.finalize([accepted, rejected])
    await validator.work.expire(silent)
    await owner.pools.announce_withdrawal(POOL, 3 * UNIT)
    await terminal.muster(*OWN, "--no-activate")
    second, first = await terminal.asks("pool", "list")
    assert (second["pool"], second["status"], second["ended"], second["expired"]) == (2, "pending", 0, None)
    assert (first["pool"], first["leaving"]) == (POOL, str(3 * UNIT))
    assert (first["ended"], first["accepted"], first["refused"], first["expired"]) == (4, 0.25, 0.25, 0.5)
    assert (first["manager"], first["stake_per_capacity"]) == (world.keys["manager"].address, str(10 * UNIT))
    assert (first["earned"], first["members"]) == (str(1_002 * UNIT // 1_000), 1)
    assert (first["url"], first["discovery"]) == (None, None)
    await owner.pools.end(POOL)
    assert [row["pool"] for row in await terminal.asks("pool", "list")] == [2]
    assert [row["pool"] for row in await terminal.asks("pool", "list", "--ended")] == [2, 1]
    assert [row["pool"] for row in await terminal.asks("pool", "list", "--ended", "--most", "1")] == [2]
    assert "older pools: --before 2" in await terminal.muster("pool", "list", "--most", "1")
    assert [row["pool"] for row in await terminal.asks("pool", "list", "--ended", "--before", "2")] == [1]


# Work leased and submitted from the command line


async def test_work_lease_derives_the_same_salt_as_the_orchestrator(terminal: Terminal, tmp_path: Path) -> None:
    await terminal.muster("work", "lease", "node", "--index", "3", "--out", str(tmp_path / "lease"))
    signed = SignedLease.model_validate_json((tmp_path / "lease").read_text())
    lease, ledger, key = signed.lease, await terminal.world.as_("owner"), terminal.world.keys["orchestrator"]
    slot = SlotSalt(**{name: getattr(lease, name) for name in SlotSalt.__dataclass_fields__ if name != "TYPE"})
    assert lease.salt == slot.derive(key, ledger.work.domain)
    assert 0 < lease.beacon_block <= await ledger.block()
    assert lease.signer(signed.raw_signature, ledger.work.domain) == key.address


async def test_work_show_names_the_validators_turn_and_a_verdict_out_of_turn_is_refused(terminal: Terminal) -> None:
    world = terminal.world
    await world.member()
    key = await world.submitted()
    validator = await world.as_("validator")
    await validator.work.judge([await verdict_on(validator, key, Outcome.FORGED)])
    await (await world.as_("node")).work.dispute(key, key)
    await world.controls.mine(2)
    turns = [turn.split(" from ")[0] for turn in (await terminal.asks("work", "show", key))["may_decide"]]
    names = {world.keys[name].address: name for name in ("second", "third")}
    assert set(turns) == set(names), "all validators except the judge"
    first, second = (names[each] for each in turns)
    said = await terminal.muster("work", "judge", key, "rejected", "--decisive", "--key", second, expect=1)
    assert "another validator's turn to decide (NotYourTurn)" in said
    assert "`muster work show` lists the turns" in said
    assert "is final, rejected" in await terminal.muster("work", "judge", key, "rejected", "--decisive", "--key", first)


# Providers


async def test_a_manager_bans_a_provider_and_lifts_the_ban(terminal: Terminal) -> None:
    await terminal.world.member()
    provider, node = terminal.world.keys["provider"].address, terminal.world.keys["node"].address
    owner = await terminal.world.as_("owner")
    banned = await terminal.asks("pool", "ban-provider", provider, "--reason", "many names", "--yes")
    assert (banned["pool"], banned["provider"], banned["banned"]) == (POOL, provider, True)
    assert [each["hash"][:2] for each in banned["transactions"]] == ["0x"]
    (event,) = await owner.history(ProviderBanned, pool_id=POOL)
    assert (event.provider, event.reason) == (provider, "many names")
    assert await owner.pools.is_banned(POOL, node, provider)
    again = await terminal.muster("pool", "ban-provider", "provider", "--reason", "again", "--yes", expect=1)
    assert f"{provider} is already banned from pool {POOL}" in again

    assert "may join pool" in await terminal.muster("pool", "unban-provider", "provider", "--yes")
    assert not await owner.pools.is_banned(POOL, node, provider)
    again = await terminal.muster("pool", "unban-provider", provider, "--yes", expect=1)
    assert f"{provider} is not banned from pool {POOL}" in again


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ban-provider", "provider", "--reason", "x", "--yes", "--key", "owner"), "NotManager"),
        (("ban-provider", "provider", "--reason", "x", "--dry-run", "--key", "owner"), "NotManager"),
        (("ban-provider", "nobody", "--reason", "x", "--yes"), "nobody"),
        (("ban-provider", "provider", "--reason", "", "--yes"), "a ban needs a reason"),
        (("ban-provider", "provider", "--reason", "x" * 201, "--yes"), "at most 200 characters"),
    ],
)
async def test_a_ban_of_a_provider_needs_the_managers_key_also_in_a_dry_run(
    terminal: Terminal, words: tuple[str, ...], said: str
) -> None:
    assert said in await terminal.muster("pool", *words, expect=1)
    assert not await (await terminal.world.as_("owner")).history(ProviderBanned, pool_id=POOL)


class Typed(io.StringIO):
    """What a user types at a terminal."""

    def isatty(self) -> bool:
        return True


# Confirmation, dry runs and costs


IRREVERSIBLE = [
    ("pool", "end"),
    ("pool", "transfer", "provider"),
    ("pool", "withdraw", "1"),
    ("pool", "evict", "node", "--reason", "x"),
    ("pool", "ban-provider", "provider", "--reason", "x"),
    ("pool", "unban-provider", "provider"),
    ("node", "leave"),
    ("node", "revoke-consent"),
    ("ledger", "transfer", "node", "1", "--key", "owner"),
]


async def test_what_cannot_be_undone_needs_a_terminal_or_yes_and_has_a_dry_run(
    terminal: Terminal,
) -> None:
    await terminal.world.member()
    owner = await terminal.world.as_("owner")
    before = await owner.block()
    for words in IRREVERSIBLE:
        said = await terminal.muster(*words, expect=2)
        assert "give --yes" in said, words
        if "unban-provider" not in words:
            planned = await terminal.asks(*words, "--dry-run")
            assert planned["dry_run"], words
            sent = planned["transaction"]
            assert sent["most_gas"] > 20_000, words
            assert int(sent["most_cost"]) >= sent["most_gas"], words
            said = await terminal.muster(*words, "--dry-run")
            assert f"would send {sent['call']} to {sent['to']} from {sent['from']}: at most" in said
            assert "nothing was changed" in said
    assert "is not banned" in await terminal.muster("pool", "unban-provider", "provider", "--dry-run", expect=1)
    assert await owner.block() == before, "nothing was sent"
    assert (await owner.pools.get(POOL)).status.name == "ACTIVE"


async def test_commands_that_send_transactions_print_hash_gas_and_cost(terminal: Terminal) -> None:
    said = await terminal.muster("pool", "fund", "3")
    assert said.count("transaction 0x") == 2, "the approval and the deposit"
    assert re.search(r"transaction 0x[0-9a-f]{64}: [0-9,]+ gas, 0\.0[0-9]+ ETH", said)
    done = await terminal.asks("pool", "end", "--yes")
    assert (done["pool"], done["status"]) == (POOL, "ended")
    [sent] = done["transactions"]
    owner = await terminal.world.as_("owner")
    receipt = await owner.web3.eth.get_transaction_receipt(sent["hash"])
    assert sent["gas_used"] == receipt["gasUsed"]
    assert sent["cost"] == str(receipt["gasUsed"] * receipt["effectiveGasPrice"])
    assert sent["block"] == receipt["blockNumber"]


@pytest.mark.parametrize(("answer", "ended"), [("n\n", False), ("y\n", True)])
async def test_at_a_terminal_the_cost_is_shown_before_the_question(
    terminal: Terminal, answer: str, ended: bool
) -> None:
    terminal.monkeypatch.setattr("sys.stdin", Typed(answer))
    said = await terminal.muster("pool", "end", expect=0 if ended else 1)
    assert re.search(
        r"would send ComputePools\.end to 0x\w+ from 0x\w+: at most [0-9,]+ gas, [0-9.]+ ETH end pool", said
    )
    owner = await terminal.world.as_("owner")
    assert ((await owner.pools.get(POOL)).status.name == "ENDED") is ended
    wrong = await terminal.muster("pool", "end", "--key", "provider", expect=1)
    assert "permanently?" not in wrong, "a transaction that would revert is not asked about"


# Rewards


async def test_rewards_have_totals_and_need_no_request_per_submission(terminal: Terminal) -> None:
    world = terminal.world
    await world.member()
    orchestrator, validator = await world.as_("orchestrator"), await world.as_("validator")
    await (await world.as_("provider")).stake.add(200 * UNIT)
    units, worth = 10, 10 * TERMS.price_per_unit

    def counting(ledger: Ledger) -> list[str]:
        asked: list[str] = []
        request = ledger.web3.provider.make_request

        async def counted(method: RPCEndpoint, parameters: Any) -> RPCResponse:
            asked.append(method)
            answer: RPCResponse = await request(method, parameters)
            return answer

        terminal.monkeypatch.setattr(ledger.web3.provider, "make_request", counted)
        return asked

    works = []
    for first in range(0, 200, 20):
        batch = [await world.submission(index=index, units=units) for index in range(first, first + 20)]
        assert await orchestrator.work.submit_batch(batch) == []
        works += [each.lease.lease.key.hash for each in batch]
    accepted, rejected, forged = works[0], works[1], works[2]
    given = [(accepted, Outcome.ACCEPTED), (rejected, Outcome.REJECTED), (works[3], Outcome.ACCEPTED)]
    await validator.work.judge([await verdict_on(validator, key, outcome) for key, outcome in given])
    provider = world.keys["provider"].address
    reader = await world.as_("owner")
    asked = counting(reader)
    before = await read_earnings(reader, POOL, provider)
    assert len(asked) < 25, Counter(asked)
    assert (before["submissions"], before["open"], before["final"]) == (200, 200, 0)
    assert (before["accepted_not_final"], before["not_judged"]) == (Must(2 * worth), Must(197 * worth))
    await validator.work.judge([await verdict_on(validator, forged, Outcome.FORGED)])
    await world.warp(TERMS.challenge_period + SECOND)
    await validator.work.finalize([accepted, rejected])
    await terminal.muster("work", "claim")
    shown = await terminal.asks("worker", "rewards")
    assert (shown["final"], shown["paid"], shown["open"], shown["claimable"]) == (2, 1, 198, "0")
    assert shown["earned_so_far"] == shown["claimed_so_far"] == str(worth)
    other = await terminal.asks("worker", "rewards", "--provider", "owner")
    assert (other["submissions"], other["earned_so_far"]) == (0, "0")
    owner = await world.as_("owner")
    terms = await owner.pools.terms(POOL)
    await owner.pools.set_terms(POOL, replace(terms, price_per_unit=terms.price_per_unit // 2))
    again = await terminal.asks("worker", "rewards")
    assert again["not_judged"] == shown["not_judged"] == str(196 * worth), "old work keeps its price"


async def test_a_deployment_is_simulated_with_addresses_and_cost_and_then_needs_no_more(terminal: Terminal) -> None:
    world, folder = terminal.world, terminal.config.parent
    terminal.config.write_text(
        f'[chain]\nrpc = "{world.url}"\nchain_id = {world.deployment.chain_id}\n[keys]\ndirectory = "keys"\n'
    )
    out = folder / "own.json"
    deploy = ("ledger", "deploy", "--out", str(out), "--key", "governor")
    ledger = await world.as_("governor")
    before = await ledger.balance(world.keys["governor"].address)
    planned = await terminal.asks(*deploy, "--dry-run")
    assert (planned["dry_run"], planned["from"]) == (True, world.keys["governor"].address)
    assert not out.exists()
    assert await ledger.balance(world.keys["governor"].address) == before == int(planned["owned"])
    said = await terminal.muster(*deploy, "--dry-run")
    assert f"would deploy {len(planned['contracts'])} contracts from" in said
    assert "nothing was changed" in said

    done, _ = json.JSONDecoder().raw_decode(await terminal.muster(*deploy, "--json"))  # a remark follows
    assert done["contracts"] == planned["contracts"]
    assert sum(each["gas_used"] for each in done["transactions"]) <= planned["most_gas"]
    assert sum(int(each["cost"]) for each in done["transactions"]) <= int(planned["most_cost"])
    assert "exists" in await terminal.muster(*deploy, "--dry-run", expect=1)
