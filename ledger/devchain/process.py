"""Runs a development chain as a child process: starts it, waits until it answers, and always stops it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import httpx

from ledger.devchain.accounts import DevelopmentAccount, development_accounts
from ledger.devchain.anvil import anvil_command
from ledger.errors import ChainUnavailable, NoFreePort, WrongChain
from protocol.http.trust import no_authorities
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.randomness import shuffled

_POLL = timedelta(milliseconds=50)
_LOG_TAIL = 4096
_PORTS = range(18_000, 32_000)
"""Ports to choose from: below the ephemeral ports of Linux (ip_local_port_range) and IANA, above most services."""

_used_ports: set[int] = set()
"""Ports that `free_port` has returned in this process."""


class ChainKind(StrEnum):
    """The program that runs the chain."""

    EMBEDDED = "embedded"
    ANVIL = "anvil"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainProcess:
    """A running development chain.

    Args:
        kind: The program that runs the chain.
        url: JSON-RPC endpoint.
        chain_id: EIP-155 chain id.
        pid: Process id of the program.
        accounts: Funded accounts; their keys are public.
        log: File with the program's stdout and stderr.
    """

    kind: ChainKind
    url: str
    chain_id: int
    pid: int
    accounts: tuple[DevelopmentAccount, ...]
    log: Path


def chain_command(
    kind: ChainKind | str,
    *,
    port: int,
    host: str = "127.0.0.1",
    state: Path | None = None,
    block_time: timedelta | None = None,
    gather: timedelta | None = None,
    chain_id: int = 31337,
    accounts: int = 10,
) -> list[str]:
    """Returns the command line of a chain, for callers that supervise processes themselves.

    Args:
        kind: `embedded` or `anvil`.
        port: TCP port of the JSON-RPC endpoint.
        host: Address to listen on.
        state: File that keeps the chain across restarts; None keeps it in memory.
        block_time: Time between blocks; None mines a block for each transaction.
        gather: Time from a transaction's arrival to an early block, which includes other transactions that arrive
            meanwhile. None mines only at the block time. Anvil has no such option and always mines at the block time.
        chain_id: EIP-155 chain id.
        accounts: Number of development accounts to fund.

    Raises:
        AnvilMissing: `kind` is anvil and there is no binary.
    """
    if ChainKind(kind) is ChainKind.ANVIL:
        return anvil_command(
            port=port, host=host, state=state, block_time=block_time, chain_id=chain_id, accounts=accounts
        )
    command = [
        *(sys.executable, "-m", "ledger.devchain.embedded", "--port", str(port), "--host", host),
        *("--chain-id", str(chain_id), "--accounts", str(accounts)),
        *("--block-time", str(block_time.total_seconds() if block_time is not None else 0)),
    ]
    if block_time is not None and gather is not None:
        command += ["--gather", str(gather.total_seconds())]
    return command if state is None else [*command, "--state", str(state)]


def chain_environment() -> Mapping[str, str]:
    """Returns environment variables for `chain_command`.

    With them, the command finds this package from any working directory.
    """
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return MappingProxyType({"PYTHONPATH": root if not inherited else f"{root}{os.pathsep}{inherited}"})


@contextlib.asynccontextmanager
async def start_chain(
    kind: ChainKind | str = ChainKind.EMBEDDED,
    *,
    state: Path | None = None,
    block_time: timedelta | None = None,
    gather: timedelta | None = None,
    port: int | None = None,
    chain_id: int = 31337,
    accounts: int = 10,
    log: Path | None = None,
    ready_within: timedelta = timedelta(seconds=30),
    clock: Clock | None = None,
) -> AsyncIterator[ChainProcess]:
    """Runs a development chain for as long as the context lasts.

    Args:
        kind: `embedded` or `anvil`.
        state: File that keeps the chain across restarts; None keeps it in memory.
        block_time: Time between blocks; None mines a block for each transaction.
        gather: Time from a transaction's arrival to an early block; see `chain_command`.
        port: TCP port on loopback; None chooses a free port.
        chain_id: EIP-155 chain id.
        accounts: Number of development accounts to fund.
        log: File for the chain's output; None uses a temporary file, deleted at the end.
        ready_within: Time limit for the first answer.
        clock: Clock for this time limit.

    Raises:
        ChainUnavailable: The port is taken, or the process ended or did not answer in time; the message contains the
            end of its log.
        WrongChain: Another chain answers on that port.
    """
    if port is None:
        port = free_port()
    elif _listening(port):
        raise ChainUnavailable(f"port {port} is in use already", hint="choose another port, or stop its user")
    command = chain_command(
        kind, port=port, state=state, block_time=block_time, gather=gather, chain_id=chain_id, accounts=accounts
    )
    async with contextlib.AsyncExitStack() as stack:
        if log is None:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-chain-"))) / "chain.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **chain_environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that Ctrl-C does not end the chain before the services that use it
            )
        stack.push_async_callback(_stop, process)
        chain = ChainProcess(
            kind=ChainKind(kind),
            url=f"http://127.0.0.1:{port}",
            chain_id=chain_id,
            pid=process.pid,
            accounts=development_accounts(accounts),
            log=log,
        )
        await _ready(chain, process, within=ready_within, clock=clock or SystemClock())
        yield chain


def free_port() -> int:
    """Returns a free TCP port on loopback outside the range of ephemeral ports.

    An ephemeral port, as `bind` to port 0 returns it, could be taken by an outgoing connection before the caller's
    process listens on it.

    Raises:
        NoFreePort: All ports of the range are taken, or were returned by this process before.
    """
    for port in shuffled(_PORTS):  # random: two processes should not choose the same port
        if port in _used_ports:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _used_ports.add(port)
            return port
    raise NoFreePort(f"none of the ports {_PORTS.start} to {_PORTS.stop - 1} on 127.0.0.1 is free")


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _ready(chain: ChainProcess, process: asyncio.subprocess.Process, *, within: timedelta, clock: Clock) -> None:
    deadline = clock.monotonic() + within.total_seconds()
    async with httpx.AsyncClient(timeout=2, trust_env=False, verify=no_authorities()) as client:
        while True:
            if process.returncode is not None:
                raise _failed(chain, f"ended with code {process.returncode} before it answered")
            answered = await _chain_id(client, chain.url)
            if answered == chain.chain_id:
                return
            if answered is not None:
                raise WrongChain(f"{chain.url} is chain {answered}, not {chain.chain_id}", hint="choose another port")
            if clock.monotonic() > deadline:
                raise _failed(chain, f"did not answer within {within.total_seconds():.0f} s")
            await clock.sleep(_POLL)


async def _chain_id(client: httpx.AsyncClient, url: str) -> int | None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
    try:
        answer = await client.post(url, json=request)
        return int(answer.json()["result"], 16)
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


def _failed(chain: ChainProcess, what: str) -> ChainUnavailable:
    tail = chain.log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()
    return ChainUnavailable(f"the {chain.kind} chain at {chain.url} {what}\n{tail}".rstrip(), hint="read its log above")


async def _stop(process: asyncio.subprocess.Process, grace: timedelta = timedelta(seconds=5)) -> None:
    """Sends SIGTERM, then SIGKILL to the process group, also when cancelled: a test must not leave a chain running."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(process.wait(), grace.total_seconds())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
