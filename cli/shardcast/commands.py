"""`muster shardcast`: publishes, relays and fetches checkpoints."""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from cli.groups import CommandGroup
from cli.keys import open_key
from cli.output.listing import listing
from cli.output.printing import JsonOption, report, say, show_json, show_table
from cli.output.quantities import counted, format_size
from cli.output.tables import Column, Columns
from cli.output.values import Size
from cli.shardcast.allowlist import allowlist
from cli.shardcast.progress import Bars, run_until_signal, served_bytes
from cli.shardcast.registration import registered
from cli.shardcast.signer import following, following_needs, source_of
from ledger.version_needs import CLOCKS_DIFFER
from protocol.clients.relay import RelayClient
from protocol.errors import InvalidInput
from protocol.runtime.budgets import keep_rule
from protocol.runtime.clock import SystemClock
from protocol.runtime.logs import configure_logs
from shardcast.client import KEPT_FOLDERS, Client
from shardcast.download.delta_chains import LONGEST_CHAIN
from shardcast.download.download import Fetched
from shardcast.folder_watcher import FolderWatcher
from shardcast.origin import KEPT_VERSIONS, Origin
from shardcast.relay import Relay
from shardcast.serve.connection_limits import ServingLimits

app = CommandGroup(no_args_is_help=True, help="Publish, relay and fetch checkpoints.")
app.command()(allowlist)

Run = Annotated[str, typer.Option("--run", help="Name or id of the run.")]
Pool = Annotated[int | None, typer.Option("--pool", min=1, help="The pool on the ledger; default from muster.toml.")]
Signer = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="The publisher: an address, or the name of a key. Default: the pool's publisher on the ledger; the "
        "newest version is then also read from the ledger.",
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")]
Keep = Annotated[int, typer.Option(min=1, max=64, help="Number of versions to keep, in addition to their bases.")]
RelayKeep = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        help="Number of versions to keep, in addition to their bases and to versions that leases and open work need; "
        "default: 5, or fewer if these exceed a tenth of the disk. With both --signer and --keep, the relay keeps only "
        "the given number and their bases.",
    ),
]
ClocksDiffer = Annotated[
    float,
    typer.Option(
        min=0,
        max=86400,
        help="Tolerance between the chain's clock and this machine's, in seconds; the relay keeps needed versions "
        "this much longer.",
    ),
]
Anchors = Annotated[
    int,
    typer.Option(
        min=1,
        max=LONGEST_CHAIN,
        help="With N, publish every Nth version as full files and the others as deltas, which are small if the "
        "learning rate is small. If N is more than 1, a version is published only when it is complete.",
    ),
]
Certificate = Annotated[Path | None, typer.Option(help="Serve https with this certificate chain (PEM).")]
CertificateKey = Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")]
Proxies = Annotated[
    list[str] | None,
    typer.Option("--trusted-proxy", metavar="NETWORK", help="Network whose X-Forwarded-For is trusted."),
]
PlainHttp = Annotated[
    bool, typer.Option("--allow-plain-http", help="Allow http to other machines; only for an encrypted network.")
]
LogLevel = Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Fetch each newer version too, until interrupted.")]
Relays = Annotated[
    list[str], typer.Option("--from", metavar="URL", help="URL of a relay or an origin. May be repeated.")
]


VERSIONS = Columns.of("version", Column("attempt", drop=1), "state", "size", Column("relays", least=20))


@app.command()
async def origin(
    context: typer.Context,
    *,
    watch: Annotated[Path, typer.Option(help="Folder to watch for checkpoints, each in a folder named by its number.")],
    run_name: Run = "default",
    key: Annotated[str, typer.Option(help="Name of the publisher's key.")] = "publisher",
    state: Annotated[
        Path | None, typer.Option(help="Folder for the origin's own data; default: .shardcast in the watched folder.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8400,
    keep: Keep = KEPT_VERSIONS,
    anchor_every: Anchors = 1,
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
    trusted_proxy: Proxies = None,
    log_level: LogLevel = "INFO",
) -> None:
    """Publish the checkpoints that appear in a folder, until interrupted.

    A checkpoint folder with a file `.writing` is published while its files grow. The checkpoint is complete when its
    writer removes `.writing`.
    """
    configure_logs(level=log_level, service=True)
    publisher = open_key(context.obj, key)
    if not watch.is_dir():
        raise InvalidInput(f"{watch} is no folder", hint="create it first; checkpoints appear in it as 1, 2, 3 …")
    publishing = Origin(
        watch,
        run=run_name,
        key=publisher,
        state=state,
        keep=keep,
        host=host,
        port=port,
        tls=_server_tls(certificate, certificate_key),
        limits=ServingLimits(trusted_proxies=tuple(trusted_proxy or ())),
    )
    async with publishing:
        report(f"publishing {watch} as {publisher.address} at {publishing.url}")
        with Bars(publishing.versions, doing="published"):
            await run_until_signal(FolderWatcher(publishing, keep=keep, anchor_every=anchor_every).run())
        newest = publishing.newest
        last = "nothing complete" if newest is None else f"newest version {newest.version}, digest {newest.digest}"
        report(
            f"stopped: {counted(len(publishing.versions), 'version')}, {last}, {served_bytes(publishing.server)} sent"
        )


@app.command()
async def relay(
    context: typer.Context,
    *,
    upstream: Annotated[list[str], typer.Option(metavar="URL", help="The origin or a relay. May be repeated.")],
    store: Annotated[Path, typer.Option(help="Folder in which the relay stores its versions.")],
    run_name: Run = "default",
    signer: Signer = None,
    pool: Pool = None,
    host: Host = "127.0.0.1",
    port: Port = 8401,
    keep: RelayKeep = None,
    clocks_differ: ClocksDiffer = CLOCKS_DIFFER.total_seconds(),
    certificate: Certificate = None,
    certificate_key: CertificateKey = None,
    trusted_proxy: Proxies = None,
    allow_plain_http: PlainHttp = False,
    orchestrator: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Register with this orchestrator, which sends the relay's URL to nodes."),
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(metavar="URL", help="With --orchestrator: URL at which nodes reach the relay.")
    ] = None,
    key: Annotated[str, typer.Option(help="With --orchestrator: name of the relay's own key.")] = "relay",
    log_level: LogLevel = "INFO",
) -> None:
    """Download checkpoints from an origin or other relays, and serve the downloaded blocks, until interrupted."""
    configure_logs(level=log_level, service=True)
    if public_url is not None and orchestrator is None:
        raise InvalidInput("--public-url needs --orchestrator", hint="give --orchestrator URL, too")
    own = None if orchestrator is None else open_key(context.obj, key)
    # With --signer and --keep, the relay keeps exactly that many versions. With --signer alone, it keeps each
    # superseded version for `NEEDED_FOR`, because it can't read from a ledger which versions are needed.
    needs_followed = signer is None or keep is None
    rule = keep_rule(store, told=keep, most=KEPT_VERSIONS, least=2)
    tolerance = timedelta(seconds=clocks_differ)
    async with source_of(context.obj, signer=signer, pool=pool, run_name=run_name, clocks_differ=tolerance) as source:
        relaying = Relay(
            store,
            upstreams=upstream,
            run=run_name,
            signer=source.signers,
            keep=rule,
            follows_needs=needs_followed,
            host=host,
            port=port,
            tls=_server_tls(certificate, certificate_key),
            limits=ServingLimits(trusted_proxies=tuple(trusted_proxy or ())),
            allow_plain_http=allow_plain_http,
        )
        async with relaying:
            report(f"relaying the checkpoints of {source.signers.publisher} at {relaying.url}")
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(following(source, relaying.trust))
                if needs_followed:
                    await stack.enter_async_context(following_needs(source, relaying.held, relaying.need))
                if own is not None and orchestrator is not None:
                    client = await stack.enter_async_context(
                        RelayClient(orchestrator, key=own, allow_plain_http=allow_plain_http)
                    )
                    url = public_url or relaying.url
                    await stack.enter_async_context(registered(client, url, clock=SystemClock()))
                with Bars(relaying.versions, doing="held"):
                    await run_until_signal(relaying.run())
            report(f"stopped: {counted(len(relaying.versions), 'version')} held, {served_bytes(relaying.server)} sent")


@app.command()
async def fetch(
    context: typer.Context,
    *,
    relays: Relays,
    to: Annotated[Path, typer.Option(help="Folder for versions, each in a folder named by its number.")],
    version: Annotated[str, typer.Option(metavar="N|latest", help="Version to fetch.")] = "latest",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Fetch each newer version too, until interrupted.")
    ] = False,
    run_name: Run = "default",
    signer: Signer = None,
    pool: Pool = None,
    keep: Annotated[int, typer.Option(min=1, max=64, help="With --follow: number of versions to keep.")] = KEPT_FOLDERS,
    allow_plain_http: PlainHttp = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch and verify a checkpoint; blocks that are on disk already are not downloaded again."""
    number = _version(version)
    if follow and number is not None:
        raise InvalidInput("--follow excludes --version", hint="omit one of them")
    async with (
        source_of(context.obj, signer=signer, pool=pool, run_name=run_name) as source,
        Client(
            relays,
            run=run_name,
            signer=source.signers,
            announcements=source.announcements,
            allow_plain_http=allow_plain_http,
        ) as client,
    ):
        with Bars() as bars:
            if not follow:
                wanted = (await client.latest()).version if number is None else number
                _show(await client.fetch(wanted, to, on_progress=bars.fetching), as_json=as_json)
                return
            async with following(source, client.trust):
                async for fetched in client.follow(to, keep=keep, on_progress=bars.fetching):
                    _show(fetched, as_json=as_json)


@app.command(name="list")
@listing(watch=True)
async def list_(
    context: typer.Context,
    *,
    relays: Relays,
    run_name: Run = "default",
    signer: Signer = None,
    pool: Pool = None,
    allow_plain_http: PlainHttp = False,
    as_json: JsonOption = False,
) -> None:
    """List the versions for which relays have a manifest that the publisher signed, newest first."""
    async with (
        source_of(context.obj, signer=signer, pool=pool, run_name=run_name) as source,
        Client(relays, run=run_name, signer=source.signers, allow_plain_http=allow_plain_http) as client,
    ):
        offers = await client.offers()
    rows = [
        (
            offer.version,
            offer.attempt,
            "complete" if offer.sealed else "growing",
            Size(offer.size),
            offer.relays,
        )
        for offer in offers
    ]
    show_table(VERSIONS, rows, as_json=as_json, empty="no versions yet")


def _version(text: str) -> int | None:
    if text == "latest":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise InvalidInput(f"{text[:40]!r} is no version", hint="give its number, or latest")
    return int(text)


def _show(fetched: Fetched, *, as_json: bool) -> None:
    if as_json:
        show_json(fetched)
        return
    seconds = max(fetched.took.total_seconds(), 1e-3)
    rate = f"{format_size(int(fetched.received / seconds))}/s"
    say(
        f"version {fetched.version} is complete and verified in {fetched.path}: {format_size(fetched.size)}, of which "
        f"{format_size(fetched.received)} were downloaded in {seconds:.1f} s ({rate}); digest {fetched.digest}"
    )


def _server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InvalidInput("https needs a certificate and its key", hint="give --certificate and --certificate-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"can't use {certificate} with {key}: {error}", hint="both must be PEM files") from None
    return context
