"""Registration of checkpoint relays, whose URLs nodes receive.

The pool's owner allows a relay by its address. The relay registers its URL under a short lease, and renews it. The
orchestrator does not probe relays, because one that does not serve costs a client only one failed request. Clients
verify every block that they download. So the allow list protects no data; it keeps strangers from registering URLs that
waste the nodes' time.
"""

from __future__ import annotations

import ipaddress
from datetime import timedelta

from orchestrator.store.checkpoint_relays import CheckpointRelayRow, CheckpointRelayStore
from protocol.errors import Forbidden, InvalidInput, NotFound
from protocol.http.url_safety import is_public, parse_http_url
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock, milliseconds
from protocol.wire.relays import KnownRelay, RelayLease

LIFE = timedelta(seconds=90)
"""Duration of a relay's lease. A dead relay is listed until its lease ends, and costs each node one failed request."""

RENEW_AFTER = LIFE / 3
"""Time after which a relay is told to renew its lease, so that two renewals may fail before the lease ends."""

_CACHED_FOR = timedelta(seconds=1)
"""Time for which the URLs of live relays are cached, because every answer of `/run/step` contains them."""


class CheckpointRelays:
    """The checkpoint relays of the pool.

    Args:
        store: Store of relays.
        clock: Clock of leases.
        private: True if a relay's URL may use plain http and a host in a private network.
    """

    def __init__(self, store: CheckpointRelayStore, *, clock: Clock, private: bool) -> None:
        self._store = store
        self._clock = clock
        self._private = private
        self._read_at: float | None = None
        self._live: tuple[str, ...] = ()

    async def register(self, relay: Address, url: str) -> RelayLease:
        """Registers a relay, or renews its lease; nodes receive its URL until the lease ends.

        Raises:
            Forbidden: The pool's owner has not allowed the relay.
            InvalidInput: `check_relay_url` refuses the URL.
        """
        url = check_relay_url(url, private=self._private)
        if not await self._store.is_allowed(relay):
            raise Forbidden(
                f"{relay} is not allowed as a relay of this pool",
                hint="the pool's owner allows it: `muster pool relays allow ADDRESS`",
                code="relay-not-allowed",
            )
        expires = self._clock.now() + LIFE
        await self._store.put(relay, url=url, expires_ms=unix_ms(expires))
        return RelayLease(
            relay=relay,
            url=url,
            expires_at_ms=unix_ms(expires),
            again_in_ms=milliseconds(RENEW_AFTER),
        )

    async def leave(self, relay: Address) -> None:
        """Ends the relay's lease."""
        await self._store.leave(relay)

    async def allow(self, relay: Address) -> KnownRelay:
        """Lets a relay register.

        Raises:
            Conflict: The maximum number of relays is allowed already.
        """
        await self._store.allow(relay)
        return next((each for each in await self.list() if each.relay == relay), KnownRelay(relay=relay))

    async def deny(self, relay: Address) -> None:
        """Ends the relay's lease and forbids new leases.

        Raises:
            NotFound: The relay was not allowed.
        """
        if not await self._store.deny(relay):
            raise NotFound(
                f"{relay} was not allowed as a relay",
                hint="`muster pool relays list` shows the allowed ones",
                code="unknown-relay",
            )
        self._read_at = None

    async def list(self) -> list[KnownRelay]:
        """Returns all allowed relays."""
        now_ms = unix_ms(self._clock.now())
        return [
            KnownRelay(
                relay=row.relay,
                url=row.url,
                expires_at_ms=row.expires_ms if row.url else None,
                live=_is_live(row, now_ms),
            )
            for row in await self._store.all()
        ]

    async def live(self) -> tuple[str, ...]:
        """Returns the URLs of relays with a live lease, cached for one second."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= _CACHED_FOR.total_seconds():
            now_ms = unix_ms(self._clock.now())
            self._live = tuple(row.url for row in await self._store.all() if row.url and _is_live(row, now_ms))
            self._read_at = now
        return self._live


def check_relay_url(url: str, *, private: bool) -> str:
    """Checks a relay's URL; returns it without a trailing slash.

    Host names are not resolved, because a node may resolve a name to another address than the orchestrator.

    Raises:
        InvalidInput: The URL is malformed; or it is plain http or in a private network, and `private` is False.
    """
    split = parse_http_url(url, what="a relay's URL", code="bad-relay-url")
    host = split.hostname or ""
    if split.scheme == "http" and not private:
        raise InvalidInput(
            "a relay's URL must begin with https://", hint="serve https, and register that URL", code="bad-relay-url"
        )
    if not private and not _may_be_public(host):
        raise InvalidInput(
            f"{host[:100]} is inside a private network",
            hint="give the URL by which nodes reach it, or set relays_in_private_networks",
            code="private-relay-url",
        )
    return url.rstrip("/")


def _may_be_public(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # A host whose last label starts with a digit is another notation of an IP: 0x7f000001, 2130706433, 127.1.
        last = host.rstrip(".").rpartition(".")[2].lower()
        named = bool(last) and not last[0].isdigit()
        return named and last not in {"localhost", "local", "internal"}
    return is_public(host)


def _is_live(row: CheckpointRelayRow, now_ms: int) -> bool:
    return row.url is not None and row.expires_ms > now_ms
