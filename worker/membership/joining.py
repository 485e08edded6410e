"""Joins a pool: waits for an invite, verifies its signer, and redeems it on the ledger."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, dataclass
from datetime import timedelta

from protocol.clients import DiscoveryClient
from protocol.errors import Forbidden, InvalidInput, MusterError
from protocol.http.location import check_service_url
from protocol.identifiers import Address, address
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.backoff import GrowingPause
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.wire.invites import SignedInvite
from worker.chain.ledger_chain import LedgerChain, NodeStatus, describe_error
from worker.membership.registration import Registrar
from worker.membership.relayed_join import RelayedJoin
from worker.situation import Phase, Situation
from worker.state import StateDirectory

_POLL_INTERVAL = timedelta(seconds=10)
"""Pause between two reads of the node's status while the worker waits for an invite."""
_BAD_INVITE_PAUSE = timedelta(milliseconds=250)
"""Pause after an invalid invite."""
_RECORD_TIMEOUT = timedelta(seconds=10)
"""Time limit for reading the pool's payment record."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorLocation:
    """URL of the pool's orchestrator, and the key that must sign its answers."""

    pool_id: int
    url: str
    orchestrator: Address
    """Address of the key that must sign the orchestrator's answers."""
    expiry: int = 0
    """Expiry of the invite that named this URL, in Unix seconds. Only an invite that expires later can change the URL.
    """


def save_membership(state: StateDirectory, membership: OrchestratorLocation) -> None:
    """Saves the membership, so that a restarted worker needs no new invite."""
    state.write("membership", asdict(membership))


def load_membership(state: StateDirectory, pool_id: int) -> OrchestratorLocation | None:
    """Returns the saved membership of this pool; None if there is none."""
    saved = state.read("membership")
    if saved is None or saved.get("pool_id") != pool_id:
        return None
    try:
        return OrchestratorLocation(
            pool_id=pool_id,
            url=str(saved["url"]),
            orchestrator=address(str(saved["orchestrator"])),
            expiry=int(saved.get("expiry", 0)),
        )
    except (KeyError, TypeError, ValueError, MusterError):
        return None


def check_invite(
    invite: SignedInvite, *, node: Address, pool_id: int, domain: SigningDomain, now_s: float, allow_plain_http: bool
) -> Address:
    """Checks that an invite is for this node, pool and ledger; returns its signer.

    It also checks the expiry and the URL.

    Raises:
        InvalidInput: The invite is for another node, pool or ledger, has expired, or names a URL that is not allowed;
            or its signature is malformed.
    """
    if invite.node != node:
        raise _refused(f"it is for {invite.node}, not for {node}")
    if invite.pool_id != pool_id:
        raise _refused(f"it is for pool {invite.pool_id}, but this worker joins pool {pool_id}")
    if invite.domain != domain:
        raise _refused(
            f"it is for contract {invite.contract} on chain {invite.chain_id}, "
            f"not for {domain.contract} on chain {domain.chain_id}"
        )
    if invite.expiry <= now_s:
        raise _refused(f"it expired {now_s - invite.expiry:.0f} s ago by this machine's clock")
    check_service_url(invite.url, allow_plain_http=allow_plain_http)
    return invite.signer()


class Joiner:
    """Makes this node a member of the pool.

    Args:
        node: This node's address.
        pool_id: Number of the pool to join.
        chain: The ledger.
        registrar: Registrar, which receives invites from discovery services.
        clock: Clock that measures the pauses.
        situation: Status of the worker, which is updated with the reason for waiting.
        allow_plain_http: Whether the orchestrator's URL may be plain `http` to another machine.
        longest_pause: Maximum pause between attempts while the chain is down.
        relayed_join: Joins through the orchestrator's relayer. If this is None or the relayed join fails, the node pays
            the gas itself.
    """

    def __init__(
        self,
        *,
        node: Address,
        pool_id: int,
        chain: LedgerChain,
        registrar: Registrar,
        clock: Clock,
        situation: Situation,
        allow_plain_http: bool,
        longest_pause: timedelta,
        relayed_join: RelayedJoin | None = None,
    ) -> None:
        self._node = node
        self._pool_id = pool_id
        self._chain = chain
        self._registrar = registrar
        self._clock = clock
        self._situation = situation
        self._allow_plain_http = allow_plain_http
        self._longest_pause = longest_pause
        self._relayed_join = relayed_join

    async def join(self) -> OrchestratorLocation:
        """Waits until the node is a member; returns the location of the orchestrator.

        The method retries without limit.
        """
        pause = GrowingPause(first=timedelta(seconds=1), longest=self._longest_pause)
        watcher = asyncio.create_task(self._show_obstacle(), name="explain")
        try:
            while True:
                service, invite = await self._registrar.next_invite()
                orchestrator = await self._accept_with_retries(invite, pause)
                await self._acknowledge(service, invite)
                if orchestrator is not None:
                    return OrchestratorLocation(
                        pool_id=self._pool_id, url=invite.url, orchestrator=orchestrator, expiry=invite.expiry
                    )
        finally:
            watcher.cancel()

    async def _accept_with_retries(self, invite: SignedInvite, pause: GrowingPause) -> Address | None:
        """Accepts an invite; retries after retryable errors.

        Returns None if the invite is invalid.
        """
        while True:
            try:
                return await self._accept(invite)
            except MusterError as error:
                _log.warning("invite-not-redeemed", nonce=invite.nonce, detail=error.detail, hint=error.hint)
                self._situation.phase = Phase.WAITING
                self._situation.detail = f"the invite was not redeemed: {describe_error(error)}"
                if not error.retryable:
                    # The pause does not grow: forged invites from one service must not delay a valid one from another.
                    await self._clock.sleep(_BAD_INVITE_PAUSE)
                    return None
                await self._clock.sleep(pause.failed())

    async def _accept(self, invite: SignedInvite) -> Address:
        """Checks and redeems the invite; returns the address of the pool's orchestrator key."""
        signer = check_invite(
            invite,
            node=self._node,
            pool_id=self._pool_id,
            domain=self._chain.invites_domain,
            now_s=self._clock.now().timestamp(),
            allow_plain_http=self._allow_plain_http,
        )
        if not await self._chain.is_orchestrator(signer):
            raise Forbidden(
                f"the invite was signed by {signer}, which is not the pool's orchestrator on the ledger",
                hint="the invite is forged, or older than a key rotation; the next invite may be valid",
            )
        status = await self._chain.node_status()
        if not status.member:
            self._situation.phase = Phase.JOINING
            self._situation.detail = "redeeming the invite on the ledger"
            await self._log_pool_record(invite)
            if not await self._join_through_relayer(invite, signer):
                await self._chain.join(invite)
        return await self._chain.orchestrator()

    async def _log_pool_record(self, invite: SignedInvite) -> None:
        """Logs the pool's payment record as information for the contributor.

        The record does not affect joining.
        """
        record = None
        with contextlib.suppress(MusterError, TimeoutError):
            async with asyncio.timeout(_RECORD_TIMEOUT.total_seconds()):
                record = await self._chain.pool_record()
        tell = _log.warning if record is not None and record.is_bad else _log.info
        summary = "could not be read" if record is None else record.summary
        tell("joining", pool=self._pool_id, orchestrator=invite.url, record=summary)

    async def _join_through_relayer(self, invite: SignedInvite, orchestrator: Address) -> bool:
        """Joins through the relayer, so that the node needs no gas; returns whether the node joined."""

        async def is_member() -> bool:
            return (await self._chain.node_status()).member

        if self._relayed_join is None:
            return False
        return await self._relayed_join.join(invite, orchestrator=orchestrator, is_member=is_member)

    async def _acknowledge(self, service: DiscoveryClient, invite: SignedInvite) -> None:
        try:
            await service.acknowledge(invite)
        except MusterError as error:
            _log.info("invite-not-acknowledged", detail=error.detail)

    async def _show_obstacle(self) -> None:
        """Keeps the status up to date with the current obstacle to joining."""
        while True:
            try:
                status = await self._chain.node_status()
            except MusterError as error:
                self._show_waiting(f"the chain does not answer: {describe_error(error)}")
            else:
                self._show_waiting(_describe_status(status))
            await self._clock.sleep(_POLL_INTERVAL)

    def _show_waiting(self, text: str) -> None:
        if self._situation.phase is Phase.JOINING:
            return
        if text != self._situation.detail:
            _log.info("waiting", why=text)
        self._situation.phase = Phase.WAITING
        self._situation.detail = text


def _describe_status(status: NodeStatus) -> str:
    obstacle = status.obstacle()
    if obstacle is not None:
        return f"{obstacle[0]} ({obstacle[1]})"
    if status.member:
        return "the node is a member on the ledger; waiting for an invite with the orchestrator's URL"
    return "ready to join; waiting for an invite from the pool"


def _refused(detail: str) -> InvalidInput:
    return InvalidInput(
        f"the invite is not valid: {detail}",
        hint="the invite is discarded; the next one may be valid",
        code="bad-invite",
    )
