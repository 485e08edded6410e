"""Behaviour specific to anvil: it is found, and it keeps its state."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from ledger.devchain import ChainKind, chain_command, start_chain
from ledger.devchain.anvil import ANVIL_VARIABLE, find_anvil
from ledger.errors import AnvilMissing
from tests.kit import gadget
from tests.kit.chain_controls import ChainControls
from tests.kit.json_rpc import Wire


def test_an_anvil_binary_named_by_variable_is_preferred_and_must_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary = tmp_path / "anvil"
    monkeypatch.setenv(ANVIL_VARIABLE, str(binary))
    with pytest.raises(AnvilMissing, match="is not an executable file"):
        find_anvil()
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    assert find_anvil() == binary
    command = chain_command(ChainKind.ANVIL, port=1, block_time=timedelta(milliseconds=500), chain_id=5)
    assert command[0] == str(binary)
    assert command[command.index("--block-time") + 1] == "0.5"
    assert "--silent" in command  # its banner shows private keys


@pytest.mark.needs_anvil
@pytest.mark.usefixtures("anvil_url")
async def test_anvils_state_survives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "anvil.json"
    async with start_chain(ChainKind.ANVIL, state=file) as chain, Wire(chain.url) as wire:
        contract = await wire.deploy_gadget(chain.accounts[0])
        await wire.transact(chain.accounts[0], to=contract, data=gadget.store(1, 42))
        async with ChainControls(chain.url) as controls:
            height = await controls.block_number()
    async with start_chain(ChainKind.ANVIL, state=file) as chain, Wire(chain.url) as wire:
        call = {"to": contract, "data": "0x" + gadget.load(1).hex()}
        assert int(await wire("eth_call", call, "latest"), 16) == 42
        assert int(await wire("eth_blockNumber"), 16) == height
