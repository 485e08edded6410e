"""Pulls signed statements from one peer, with limits on time, bytes and checked signatures."""

from __future__ import annotations

from datetime import timedelta

from prometheus_client import CollectorRegistry, Counter

from discovery.federation.intake import PeerLied, StatementIntake
from discovery.store.records import read_cursor
from protocol.clients import DiscoveryClient
from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import Address
from protocol.identity.typed_data import SigningDomain
from protocol.redis.connection import StoreUnavailable
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.backoff import GrowingPause
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.retry import Backoff, Deadline

PAGE_TIMEOUT = timedelta(seconds=10)
"""Time limit of one page with all attempts."""
ROUND_TIMEOUT = timedelta(seconds=60)
"""Time after which a round ends; the next one continues at its cursor."""
MOST_CHECKED = 20_000
"""Number of checked signatures after which a round ends; the next one continues at its cursor."""
MOST_BYTES = 128 * 1024 * 1024
"""Size of all pages after which a round ends; the next one continues at its cursor."""
ONE_ATTEMPT = Backoff(attempts=1)
"""Retry policy of clients of peers: the next round repeats what failed."""
LONGEST_PAUSE = timedelta(minutes=10)
"""Maximum pause after failures in a row."""
LEASE_LIFETIME = timedelta(seconds=30)
"""Lifetime of the leader lease, longer than a page. Another instance takes over if its holder crashes."""

_log = get_logger(__name__)


def refusals_on(registry: CollectorRegistry) -> Counter:
    """Registers the counter of registrations that the limits of federation refused, and returns it."""
    return Counter(
        "muster_discovery_federated_refused",
        "Registrations from a peer that were refused by federated_records or federated_bytes",
        ("peer",),
        registry=registry,
    )


class PeerPuller:
    """Pulls the statements of one peer, round by round.

    Args:
        client: Client of the peer, with this service's key.
        intake: Checks and stores statements.
        own: Address of this service.
        pools: Signing domain of the contract of this service's pools; the peer must serve the same.
        lease: The leader lease of this peer: one instance of the service pulls.
        first_pause: Pause after the first failure.
        refusals: Counter of refused registrations by peer, see `refusals_on`.
        clock: Clock that measures limits and pauses.
    """

    def __init__(
        self,
        client: DiscoveryClient,
        intake: StatementIntake,
        *,
        own: Address,
        pools: SigningDomain,
        lease: LeaderLease,
        first_pause: timedelta,
        refusals: Counter,
        clock: Clock,
    ) -> None:
        self._client = client
        self._intake = intake
        self._own = own
        self._pools = pools
        self._lease = lease
        self._pause = GrowingPause(first=first_pause, longest=max(first_pause, LONGEST_PAUSE))
        self._refusals = refusals.labels(client.location.url)
        self._clock = clock
        self._full = False
        self._not_before = 0.0
        self._cursor: Address | None = None
        self._error = ""

    async def round(self) -> None:
        """Pulls all pages, unless a limit ends the round earlier or the peer failed a short time ago.

        Raises:
            StoreUnavailable: Redis is down.
        """
        if self._clock.monotonic() < self._not_before or not await self._lease.hold():
            return
        url = self._client.location.url
        try:
            stored = await self._pull()
        except StoreUnavailable:
            raise
        except MusterError as error:
            if isinstance(error, PeerLied):
                self._cursor = None
            pause = self._pause.failed()
            self._not_before = self._clock.monotonic() + pause.total_seconds()
            if error.code != self._error:
                event = "peer-lied" if isinstance(error, PeerLied) else "peer-failed"
                _log.warning(
                    event, peer=url, detail=error.detail, hint=error.hint, again_in_s=round(pause.total_seconds())
                )
            self._error = error.code
            return
        if self._error:
            _log.info("peer-answers-again", peer=url, stored=stored)
        self._error = ""
        self._pause.succeeded()

    async def _pull(self) -> int:
        deadline = Deadline.after(ROUND_TIMEOUT, clock=self._clock)
        peer = await self._check_identity()
        checked = stored = refused = size = 0
        while True:
            page = await self._client.statements(
                cursor=self._cursor, call_timeout=min(PAGE_TIMEOUT, deadline.remaining)
            )
            taken = await self._intake.take(page, peer=peer, after=self._cursor)
            checked, stored, size = checked + taken.checked, stored + taken.stored, size + taken.bytes
            refused += taken.refused
            self._refusals.inc(taken.refused)
            self._cursor = _cursor(page.next_cursor)
            over = deadline.passed or checked >= MOST_CHECKED or size >= MOST_BYTES
            if self._cursor is None or over or not await self._lease.hold():
                self._log_limit(refused)
                return stored

    def _log_limit(self, refused: int) -> None:
        """Logs once that the peer has reached its limit, and once that its registrations have room again."""
        if refused and not self._full:
            _log.warning(
                "peer-limit-reached",
                peer=self._client.location.url,
                refused=refused,
                hint="raise federated_records or federated_bytes if the peer is honest, or remove it from peers",
            )
        elif self._full and not refused:
            _log.info("peer-within-limit-again", peer=self._client.location.url)
        self._full = refused > 0

    async def _check_identity(self) -> Address:
        """Checks that the peer is a discovery service of the same contract, and not this service; returns its address.

        Raises:
            PeerLied: It is this service, or a service of another kind or ledger.
        """
        found = await self._client.identity(call_timeout=PAGE_TIMEOUT)
        if found.address == self._own:
            raise PeerLied(
                f"{self._client.location.url} is this service itself", hint="remove it from the setting `peers`"
            )
        if (found.service, found.chain_id, found.contract) != ("discovery", self._pools.chain_id, self._pools.contract):
            raise PeerLied(
                f"{self._client.location.url} is a service of another kind, or for contract {found.contract} on chain "
                f"{found.chain_id}; here it is {self._pools.contract} on chain {self._pools.chain_id}",
                hint="peers serve the same ledger: check the setting `peers`",
            )
        return found.address


def _cursor(text: str | None) -> Address | None:
    try:
        return read_cursor(text)
    except InvalidInput as error:
        raise PeerLied("its cursor is not an address", hint="ask the peer's operator for its release") from error
