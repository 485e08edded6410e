"""From a stranger to a member: waits for an invite, believes only one that the pool signed, redeems it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, dataclass
from datetime import timedelta

import structlog

from protocol.clients import DiscoveryClient
from protocol.errors import Forbidden, InvalidInput, MusterError
from protocol.http.client import check_service_url
from protocol.identifiers import Address, address
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.clock import Clock
from protocol.wire.invites import SignedInvite
from worker.backoff import GrowingPause
from worker.chain.ledger_chain import NodeStatus, WorkerChain, why
from worker.membership.registration import Registrar
from worker.membership.relayed_join import RelayedJoin
from worker.situation import Phase, Situation
from worker.state import StateDirectory

_LOOK_AGAIN = timedelta(seconds=10)
_AFTER_A_BAD_ONE = timedelta(milliseconds=250)
_RECORD_PATIENCE = timedelta(seconds=10)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorLocation:
    """Where the pool's orchestrator is, and whose answers are believed."""

    pool_id: int
    url: str
    orchestrator: Address
    expiry: int = 0
    """Of the invite that named the URL, in Unix seconds: only an invite that expires later changes the URL."""


def save_membership(state: StateDirectory, membership: OrchestratorLocation) -> None:
    """Remembers it: a worker that was killed goes on without asking anybody."""
    state.write("membership", asdict(membership))


def load_membership(state: StateDirectory, pool_id: int) -> OrchestratorLocation | None:
    """What was saved for this pool."""
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
    """Returns who signed an invite that is for this node, this pool and this ledger, and is still good.

    Raises:
        InvalidInput: It is for somebody or something else, has expired, or names a URL that may not be spoken to.
    """
    if invite.node != node:
        raise _refused(f"it is for {invite.node}, not for {node}")
    if invite.pool_id != pool_id:
        raise _refused(f"it is for pool {invite.pool_id}, and this worker wants pool {pool_id}")
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
    """Makes this node a member.

    Args:
        node: This node.
        pool_id: The pool.
        chain: The ledger.
        registrar: Where invites come from.
        clock: Whose time is waited.
        situation: Where it shows what it waits for.
        allow_plain_http: Whether the orchestrator may be spoken to without TLS.
        longest_pause: Between attempts while the chain is down.
        relay: Has the orchestrator carry the join; without one, and where it does not, the node pays for itself.
    """

    def __init__(
        self,
        *,
        node: Address,
        pool_id: int,
        chain: WorkerChain,
        registrar: Registrar,
        clock: Clock,
        situation: Situation,
        allow_plain_http: bool,
        longest_pause: timedelta,
        relay: RelayedJoin | None = None,
    ) -> None:
        self._node = node
        self._pool_id = pool_id
        self._chain = chain
        self._registrar = registrar
        self._clock = clock
        self._situation = situation
        self._allow_plain_http = allow_plain_http
        self._longest_pause = longest_pause
        self._relay = relay

    async def join(self) -> OrchestratorLocation:
        """Returns when the node is a member and knows its orchestrator. Never gives up, and says what it waits for."""
        pause = GrowingPause(first=timedelta(seconds=1), longest=self._longest_pause)
        watcher = asyncio.create_task(self._explain(), name="explain")
        try:
            while True:
                service, invite = await self._registrar.next_invite()
                orchestrator = await self._accept_while_good(invite, pause)
                await self._drop(service, invite)
                if orchestrator is not None:
                    return OrchestratorLocation(
                        pool_id=self._pool_id, url=invite.url, orchestrator=orchestrator, expiry=invite.expiry
                    )
        finally:
            watcher.cancel()

    async def _accept_while_good(self, invite: SignedInvite, pause: GrowingPause) -> Address | None:
        """Tries again while the chain is down and the invite lasts; None if it is no good."""
        while True:
            try:
                return await self._accept(invite)
            except MusterError as error:
                _log.warning("invite-not-redeemed", nonce=invite.nonce, detail=error.detail, hint=error.hint)
                self._situation.phase = Phase.WAITING
                self._situation.detail = f"the invite was not redeemed: {why(error)}"
                if not error.retryable:
                    # Not a growing pause: a service with forged invites must not hold up another's good one.
                    await self._clock.sleep(_AFTER_A_BAD_ONE)
                    return None
                await self._clock.sleep(pause.failed())

    async def _accept(self, invite: SignedInvite) -> Address:
        """Checks the invite, redeems it, returns whose answers are to be believed."""
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
                hint="a forged invite, or one from before a key was rotated; the next one may be good",
            )
        standing = await self._chain.standing()
        if not standing.member:
            self._situation.phase = Phase.JOINING
            self._situation.detail = "redeeming the invite on the ledger"
            await self._tell_record(invite)
            if not await self._carried(invite, signer):
                await self._chain.join(invite)
        return await self._chain.orchestrator()

    async def _tell_record(self, invite: SignedInvite) -> None:
        """Logs whether the pool pays for work, as far as the ledger can be read; it never keeps a node from joining."""
        record = None
        with contextlib.suppress(MusterError, TimeoutError):
            async with asyncio.timeout(_RECORD_PATIENCE.total_seconds()):
                record = await self._chain.pool_record()
        tell = _log.warning if record is not None and record.is_bad else _log.info
        words = "could not be read" if record is None else record.words
        tell("joining", pool=self._pool_id, orchestrator=invite.url, record=words)

    async def _carried(self, invite: SignedInvite, orchestrator: Address) -> bool:
        """Whether the orchestrator carried the join, so that the node needs no gas."""

        async def is_member() -> bool:
            return (await self._chain.standing()).member

        if self._relay is None:
            return False
        return await self._relay.carry(invite, orchestrator=orchestrator, is_member=is_member)

    async def _drop(self, service: DiscoveryClient, invite: SignedInvite) -> None:
        try:
            await service.acknowledge(invite)
        except MusterError as error:
            _log.info("invite-not-acknowledged", detail=error.detail)

    async def _explain(self) -> None:
        """While waiting: says what the ledger still misses, in words."""
        while True:
            try:
                standing = await self._chain.standing()
            except MusterError as error:
                self._waiting(f"the chain does not answer: {why(error)}")
            else:
                self._waiting(_words(standing))
            await self._clock.sleep(_LOOK_AGAIN)

    def _waiting(self, words: str) -> None:
        if self._situation.phase is Phase.JOINING:
            return
        if words != self._situation.detail:
            _log.info("waiting", why=words)
        self._situation.phase = Phase.WAITING
        self._situation.detail = words


def _words(standing: NodeStatus) -> str:
    obstacle = standing.obstacle()
    if obstacle is not None:
        return f"{obstacle[0]} ({obstacle[1]})"
    if standing.member:
        return "a member on the ledger; waiting for the pool's orchestrator to say where it is"
    return "ready to join; waiting for an invite from the pool"


def _refused(detail: str) -> InvalidInput:
    return InvalidInput(
        f"the invite is not good: {detail}", hint="it is thrown away; the next one may be good", code="bad-invite"
    )
