"""`muster worker init`: leads a contributor from a fresh machine to a registered node with a configured worker.

The command changes things in steps: files and keys, stake, registration, systemd unit. Each step looks first whether
it was done before, so that a second run continues where the first one stopped.
"""

from __future__ import annotations

import getpass
import signal
import sys
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from cli.exit_codes import WrongUsage
from cli.keys import create_password_file, open_key
from cli.ledger.node import register_node
from cli.output.findings import show_findings
from cli.output.printing import note, say, show_fields, warn
from cli.output.values import as_text
from cli.pool.joining import VerifiedPool, find_pool, verify_pool
from cli.worker.daemon import UNIT
from cli.worker.setup_files import WorkerFolder, unit_path, write_unit
from cli.worker.setup_plan import (
    Needs,
    Setup,
    about_local_network,
    about_money,
    about_pool,
    check_node,
    configuration_of,
    needs_of,
    private_networks,
    show_plan,
    target_stake,
)
from ledger.amounts import format_amount, parse_amount
from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.errors import InsufficientFunds
from ledger.transactions.receipts import Receipt
from protocol.errors import Conflict, InvalidInput, NotFound
from protocol.http.url_safety import parse_http_url
from protocol.identifiers import address
from protocol.identity.keys import Key
from protocol.identity.keystores import write_keystore
from protocol.runtime.configuration_file import find_configuration_file, home_configuration, placed
from protocol.runtime.findings import exit_code
from worker.chain.earnings import read_earnings
from worker.chain.pool_record import read_pool_record
from worker.doctor.examination import examine
from worker.settings import WorkerSettings

T = TypeVar("T")

PoolArgument = Annotated[
    str | None, typer.Argument(metavar="POOL", help="URL of the pool, or its number on the ledger (with --deployment).")
]
Rpc = Annotated[
    str | None,
    typer.Option(
        help="JSON-RPC endpoint of the chain. Other users see options: give a URL with an access key in the variable.",
        envvar="MUSTER_RPC",
        show_envvar=True,
    ),
]
DeploymentFile = Annotated[Path | None, typer.Option("--deployment", help="Deployment file of the ledger.")]
LedgerAddress = Annotated[
    str | None,
    typer.Option(
        "--ledger", help="StakeManager of the ledger, as its governor publishes it; --yes needs it or --deployment."
    ),
]
Discovery = Annotated[
    list[str] | None, typer.Option("--discovery", help="Discovery service, instead of the pool's; may be repeated.")
]
Directory = Annotated[
    Path | None, typer.Option(help="Folder of configuration and keys; one per worker. Default: ~/.config/muster.")
]
Capacity = Annotated[
    int | None, typer.Option(min=1, max=2**32 - 1, help="Size of this machine; default: the pool's least.")
]
StakeAmount = Annotated[
    str | None, typer.Option("--stake", help="Active stake to reach, in MUST; default: twice what joining locks.")
]
PasswordFile = Annotated[
    Path | None, typer.Option(help="File with the keystores' password; default: DIRECTORY/password, made if missing.")
]


async def init(
    pool: PoolArgument = None,
    rpc: Rpc = None,
    deployment: DeploymentFile = None,
    ledger_address: LedgerAddress = None,
    discovery: Discovery = None,
    directory: Directory = None,
    capacity: Capacity = None,
    stake: StakeAmount = None,
    password_file: PasswordFile = None,
    systemd: Annotated[
        bool | None,
        typer.Option(
            "--systemd/--no-systemd",
            help=f"Write the user's systemd unit ~/{UNIT}, or not; of another --directory, muster-worker-NAME.",
        ),
    ] = None,
    allow_plain_http: Annotated[
        bool, typer.Option("--allow-plain-http", help="Allow plain http; only inside an encrypted network.")
    ] = False,
    unverified_contracts: Annotated[
        bool, typer.Option("--unverified-contracts", help="Accept contracts whose code is not that of this release.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; send the transactions.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
) -> None:
    """Set up this machine for a pool: keys, stake, registration, configuration and checks.

    A second run continues where the first one stopped. Existing files and keys are never overwritten.
    """
    may_ask = sys.stdin.isatty() and not yes
    if not (may_ask or yes or dry_run):
        raise WrongUsage(
            "without a terminal this command can't ask before it stakes and registers",
            hint="give --yes to do all steps, or --dry-run to see them",
        )
    where = _needed(pool, "pool", "Pool (URL, or number on the ledger)", may_ask)
    setup = Setup(
        folder=WorkerFolder(_folder(directory)),
        rpc=_needed(rpc, "--rpc", "JSON-RPC endpoint of the chain", may_ask),
        capacity=capacity,
        stake=None if stake is None else parse_amount(stake),
        password_file=None if password_file is None else placed(password_file).absolute(),
        allow_plain_http=allow_plain_http,
        may_ask=may_ask,
    )
    if setup.password_file is not None and not setup.password_file.is_file():
        raise NotFound(
            f"there is no password file {setup.password_file}", hint="write the password on its first line; mode 600"
        )
    parse_http_url(setup.rpc, what="the chain's URL")
    found = await find_pool(
        where,
        rpc=setup.rpc,
        deployment=deployment,
        stake_manager=None if ledger_address is None else address(ledger_address),
        discovery=discovery or (),
        allow_plain_http=allow_plain_http,
    )
    trusted = deployment is not None or ledger_address is not None
    if not (trusted or may_ask or dry_run):
        raise InvalidInput(
            f"only the pool says that its ledger has the StakeManager {found.deployment[Contract.STAKE_MANAGER]}, and "
            "--yes would stake there without a question",
            hint="compare it with the address that the ledger's governor publishes, then give that address with "
            "--ledger, or the ledger's deployment file with --deployment; without --yes you are asked",
            code="ledger-not-named",
        )
    async with Ledger.connect(setup.rpc, found.deployment) as ledger:
        verified = await verify_pool(
            ledger, found, unverified_contracts=unverified_contracts, allow_plain_http=allow_plain_http
        )
        setup.folder.check(verified)
        if systemd:
            unit_path(Path.home(), setup.folder.configuration)  # refuses another worker's unit before anything changes
        terms = verified.terms
        chosen = max(terms.min_capacity, 1) if setup.capacity is None else setup.capacity
        if chosen < terms.min_capacity:
            raise InvalidInput(
                f"the pool requires a capacity of at least {terms.min_capacity}, not {chosen}",
                hint="leave --capacity out, or choose another pool: `muster pool list`",
            )
        target_stake(verified, setup, capacity=chosen)
        earnings = await read_earnings(ledger, verified.pool_id)
        record = await read_pool_record(ledger, verified.pool_id)
        networks = await private_networks(verified.url) if allow_plain_http else ()
        show_fields(
            {
                **about_pool(verified, setup, earnings, record, verified_code=not unverified_contracts),
                "local network": about_local_network(setup, networks),
            }
        )
        if dry_run:
            await show_plan(ledger, verified, setup, capacity=chosen)
            return
        if may_ask:
            _ask_to_go_on(f"Make keys and write the configuration in {setup.folder.path}?")
        password, made = _write_files(verified, setup, networks)
        configuration = configuration_of(setup, password)
        provider, node = (made.get(name) or open_key(configuration, name) for name in ("provider", "node"))
        await check_node(ledger, verified.pool_id, provider.address, node.address)
        needs = await needs_of(ledger, verified, setup, capacity=chosen, provider=provider.address, node=node.address)
        show_fields(about_money(provider.address, node.address, needs))
        if needs.missing:
            raise InsufficientFunds(
                f"the provider {provider.address} lacks {needs.missing}",
                hint=f"send it to {provider.address} (the pool's owner or the ledger's governor gives out MUST), "
                "then run this command again: it continues here",
            )
    if needs.stake or needs.register:
        await _send(verified, setup, needs, capacity=chosen, provider=provider, node=node, trusted=trusted)
    _offer_unit(setup, systemd=systemd, unattended=password is not None)
    await _examine(setup)


def _needed(given: str | None, name: str, question: str, may_ask: bool) -> str:
    if given is not None:
        return given
    if not may_ask:
        raise InvalidInput(
            f"{name} is missing", hint="`muster worker init --help` shows what to give without a terminal"
        )
    return str(_uninterrupted(lambda: typer.prompt(question, err=True)))


def _folder(directory: Path | None) -> Path:
    chosen = home_configuration() if directory is None else placed(directory).absolute()
    if chosen is None:
        raise InvalidInput("there is no home directory for the configuration", hint="give --directory")
    return chosen


def _write_files(
    pool: VerifiedPool, setup: Setup, networks: Sequence[IPv4Network]
) -> tuple[Path | None, dict[str, Key]]:
    """Makes keys, deployment file and configuration, as far as they are missing.

    Returns:
        The password file, or None if the user remembers the password; and the new keys by name.
    """
    folder = setup.folder
    folder.make()
    missing = [name for name in ("provider", "node") if not folder.keystore(name).exists()]
    file, password = _password(setup, new=len(missing) == 2)
    existing = configuration_of(setup, file)
    made: dict[str, Key] = {}
    for name in missing:
        try:
            open_key(existing, name)  # from its variable
            continue
        except NotFound:
            pass
        if password is None:
            raise InvalidInput(
                f"there is no password file for the new key {name}, and the other key has a password",
                hint=f"give --password-file, or make the key yourself: `muster keys new {name}`",
            )
        made[name] = key = Key.generate()
        write_keystore(folder.keystore(name), key, password)
        say(f"made the key {name}: {key.address} in {folder.keystore(name)}")
    if missing:
        note(f"keep a copy of {folder.keys} and of the password in a safe place: they can't be restored")
    if folder.write_deployment(pool.deployment):
        say(f"wrote {folder.deployment}")
    if folder.write_configuration(
        pool,
        rpc=setup.rpc,
        password_file=file,
        allow_plain_http=setup.allow_plain_http,
        allow_networks=networks,
    ):
        say(f"wrote {folder.configuration}")
    else:
        note(f"{folder.configuration} exists and is kept as it is")
    return file, made


def _password(setup: Setup, *, new: bool) -> tuple[Path | None, str | None]:
    """Returns the password file and the password of new keystores.

    Raises:
        InvalidInput: The file is empty, or the user typed two different passwords.
    """
    file = setup.password_file or setup.folder.password
    if not file.exists() and not new:
        return None, None  # the keys were made with a typed password
    if not file.exists() and setup.may_ask:
        typed = _uninterrupted(lambda: getpass.getpass(f"Password of the keys (empty: make one in {file}): "))
        if typed:
            if typed != _uninterrupted(lambda: getpass.getpass("Again: ")):
                raise InvalidInput("the two passwords differ", hint="run this again")
            note("the worker asks for this password when it starts, or reads it from MUSTER_NODE_PASSWORD")
            return None, typed
    create_password_file(file)
    with file.open() as opened:
        password = opened.readline(4096).rstrip("\r\n")
    if not password:
        raise InvalidInput(f"the password file {file} is empty", hint="write the password on its first line")
    return file, password


async def _send(
    pool: VerifiedPool, setup: Setup, needs: Needs, *, capacity: int, provider: Key, node: Key, trusted: bool
) -> None:
    """Sends the outstanding transactions, each after a question if the command may ask.

    Args:
        pool: The pool.
        setup: What the command was told.
        needs: The outstanding transactions.
        capacity: Capacity of the node.
        provider: Key that stakes and registers.
        node: Key of the node.
        trusted: Whether the contributor named the ledger, and not only the pool.
    """
    async with Ledger.connect(setup.rpc, pool.deployment, key=provider) as ledger:
        if needs.stake:
            amount = f"{format_amount(needs.stake)} MUST"
            if setup.may_ask:
                if not trusted:
                    warn(
                        f"only the pool says that {ledger.stake.at} is the ledger's StakeManager: compare it with the "
                        "address that the ledger's governor publishes"
                    )
                _ask_to_go_on(
                    f"Stake {amount}? Forged work is slashed from it; getting it back takes the unbonding period, "
                    f"{as_text(pool.unbonding_period)}."
                )
            if needs.approve:
                _tell(
                    f"allowed the stake contract to take {amount}",
                    await ledger.token.approve(ledger.stake.at, needs.stake),
                )
            _tell(f"staked {amount}", await ledger.stake.add(needs.stake))
        if needs.register:
            if setup.may_ask:
                _ask_to_go_on(f"Register the node {node.address} with capacity {capacity}?")
            receipt = await register_node(ledger, node, capacity=capacity)
            _tell(f"registered the node with capacity {capacity}", receipt)


def _tell(done: str, receipt: Receipt) -> None:
    cost = format_amount(receipt.gas_used * receipt.gas_price)
    say(f"{done}: transaction {receipt.transaction}, {receipt.gas_used:,} gas for {cost} of the chain's coin")


def _offer_unit(setup: Setup, *, systemd: bool | None, unattended: bool) -> None:
    """Writes the systemd unit if the user wants it.

    Raises:
        InvalidInput: A unit is wanted, but the worker would ask for a password.
    """
    if systemd is None and setup.may_ask and unattended:
        try:
            path = unit_path(Path.home(), setup.folder.configuration)
        except Conflict as error:
            warn(f"no systemd unit was written: {error.detail}")
            return
        systemd = not path.exists() and _uninterrupted(
            lambda: typer.confirm(f"Write a systemd unit that starts the worker ({path})?", err=True)
        )
    if not systemd:
        return
    if not unattended:
        raise InvalidInput(
            "a systemd unit can't ask for the node's password", hint="give --password-file, or run the worker yourself"
        )
    path, written = write_unit(Path.home(), setup.folder.configuration)
    say(f"{'wrote' if written else 'kept'} {path}; start it with:")
    say("  systemctl --user daemon-reload")
    say(f"  systemctl --user enable --now {path.stem}")
    say("  loginctl enable-linger    # keeps it running after you log out")


async def _examine(setup: Setup) -> None:
    """Runs the checks of `muster worker doctor`, and ends with 1 if one of them failed."""
    configuration = setup.folder.configuration
    findings = await examine(WorkerSettings.load(file=configuration))
    show_findings(findings)
    failed = exit_code(findings) != 0
    found = find_configuration_file()
    prefix = "muster" if found == configuration.absolute() else f"muster --config {configuration}"
    if failed:
        warn(f"correct what is marked FAILURE, then check again: {prefix} worker doctor")
        raise typer.Exit(1)
    say(f"next: {prefix} worker run")


def _ask_to_go_on(question: str) -> None:
    _uninterrupted(lambda: typer.confirm(question, abort=True, err=True))


def _uninterrupted(ask: Callable[[], T]) -> T:
    """Asks at the terminal so that Ctrl-C ends the command; asyncio's handler would act only after the answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return ask()
    finally:
        signal.signal(signal.SIGINT, before)
