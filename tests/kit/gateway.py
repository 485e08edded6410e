"""A gateway on a real Redis and a real port, its workers' tasks, and a clock that tests turn."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from openai import OpenAI

from gateway.app import build_gateway
from gateway.clients.tokens import GatewayRole, TokenQuota
from gateway.dependencies import Dependencies
from gateway.loops.background import sweep_once
from gateway.settings import GatewaySettings
from protocol.http.client import ServiceClient
from protocol.identifiers import Address, Digest, address, digest, run_id
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import Clock
from protocol.wire.answers import AnswerRecord, RecordedSample, RecordedSampling
from protocol.wire.leases import SignedLease
from protocol.wire.served import ServedList, SignedServedList
from protocol.wire.serving import (
    AnswerFailure,
    AnswerPart,
    AnswerParts,
    AnswerTokens,
    AssignedRequest,
    OpenSession,
    PartsTaken,
    ServingSession,
    TakenRequests,
    TakeRequests,
)
from tests.kit.http_server import served

POOL = 7
RUN = "serving"
DOMAIN = SigningDomain(31337, address("0x" + "22" * 20))
VERSION = 3
DIGEST = digest(bytes([5]) * 32)
ARITHMETIC = "torch/float32"
LIMIT = 64
"""Maximum number of new tokens of a choice, by the leases."""


class TurnedClock:
    """The system's clock plus an offset, which a test adds from another thread; sleeps end when it is turned."""

    def __init__(self) -> None:
        self._offset = 0.0

    def turn(self, seconds: float) -> None:
        self._offset += seconds

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._offset)

    def monotonic(self) -> float:
        return time.monotonic() + self._offset

    async def sleep(self, duration: timedelta) -> None:
        until = self.monotonic() + duration.total_seconds()
        while (left := until - self.monotonic()) > 0:  # noqa: ASYNC110 - the test's thread turns the clock
            await asyncio.sleep(min(left, 0.01))


class MemoryGatewayLedger:
    """What the gateway reads from the ledger."""

    def __init__(self, orchestrator: Key) -> None:
        self.orchestrator = orchestrator
        self.members: dict[Address, Address] = {}
        self.announced: dict[int, Digest] = {VERSION: DIGEST}
        self.domain = DOMAIN

    async def orchestrators(self) -> frozenset[Address]:
        return frozenset({self.orchestrator.address})

    async def provider_of(self, node: Address) -> Address | None:
        return self.members.get(node)

    async def version(self, version: int) -> Digest | None:
        return self.announced.get(version)

    async def latest(self) -> tuple[int, Digest] | None:
        return max(self.announced.items()) if self.announced else None

    async def aclose(self) -> None:
        pass


@dataclass
class Replica:
    """One running replica."""

    url: str
    app: FastAPI
    loop: asyncio.AbstractEventLoop

    @property
    def dependencies(self) -> Dependencies:
        found: Dependencies = self.app.state.dependencies
        return found

    def run(self, work: Any) -> Any:
        """Runs a coroutine in the replica's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


@dataclass
class GatewayUnderTest:
    """A gateway with one or more replicas."""

    redis_url: str
    key: Key
    ledger: MemoryGatewayLedger
    clock: TurnedClock
    replicas: list[Replica] = field(default_factory=list)
    tasks: list[GatewayTask] = field(default_factory=list)
    indices: int = 0

    @property
    def url(self) -> str:
        return self.replicas[0].url

    def token(
        self, name: str = "app", *, role: GatewayRole = GatewayRole.CLIENT, quota: TokenQuota | None = None
    ) -> str:
        first = self.replicas[0]
        found: str = first.run(first.dependencies.tokens.create(name, role, quota or TokenQuota()))
        return found

    def client(self, token: str, *, replica: int = 0) -> OpenAI:
        return OpenAI(base_url=f"{self.replicas[replica].url}/v1", api_key=token, max_retries=0, timeout=30)

    def turn(self, seconds: float) -> None:
        """Turns the clock and sweeps."""
        self.clock.turn(seconds)
        first = self.replicas[0]
        first.run(sweep_once(first.dependencies))

    def node(self) -> Key:
        """Returns the key of a new member, whose provider is itself."""
        key = Key.generate()
        self.ledger.members[key.address] = key.address
        return key

    def lease(
        self, node: Key, *, groups: int = 8, seconds: float = 600, signer: Key | None = None, **other: Any
    ) -> SignedLease:
        """Returns the next lease of a node."""
        self.indices += 1
        values: dict[str, Any] = {
            "pool_id": POOL,
            "run": run_id(RUN),
            "step": VERSION,
            "index": self.indices,
            "node": node.address,
            "version": VERSION,
            "digest": DIGEST,
            "beacon_block": 5,
            "salt": digest(bytes(32)),
            "groups": groups,
            "max_units": groups * LIMIT,
            "expiry": int(self.clock.now().timestamp() + seconds),
        } | other
        lease = Lease(**values)
        return SignedLease.of(lease, domain=DOMAIN, signature=lease.sign(signer or self.ledger.orchestrator, DOMAIN))

    def task(
        self, node: Key | None = None, *, replica: int = 0, arithmetic: str = ARITHMETIC, **lease: Any
    ) -> GatewayTask:
        """Opens a session for a new lease."""
        node = node or self.node()
        task = GatewayTask(self, node, self.lease(node, **lease), replica=replica, arithmetic=arithmetic)
        task.open()
        self.tasks.append(task)
        return task


@contextmanager
def running_gateway(
    redis_url: str, *, replicas: int = 1, with_loops: bool = True, **more: Any
) -> Iterator[GatewayUnderTest]:
    """Runs the replicas of a gateway."""
    orchestrator, key = Key.generate(), Key.generate()
    ledger, clock = MemoryGatewayLedger(orchestrator), TurnedClock()
    under_test = GatewayUnderTest(redis_url=redis_url, key=key, ledger=ledger, clock=clock)
    with _replicas(under_test, replicas, with_loops, more):
        try:
            yield under_test
        finally:
            for task in under_test.tasks:
                task.stop()


@contextmanager
def _replicas(under_test: GatewayUnderTest, left: int, with_loops: bool, more: dict[str, Any]) -> Iterator[None]:
    if not left:
        yield
        return
    app, started = build(under_test.redis_url, under_test.key, under_test.ledger, under_test.clock, with_loops, more)
    with served(app) as url:
        started.wait(30)
        under_test.replicas.append(Replica(url, app, app.state.loop))
        app.state.dependencies.settings.__dict__["public_url"] = url
        with _replicas(under_test, left - 1, with_loops, more):
            yield


def build(
    redis_url: str, key: Key, ledger: MemoryGatewayLedger, clock: Clock, with_loops: bool, more: dict[str, Any]
) -> tuple[FastAPI, threading.Event]:
    """Builds a replica, and an event that is set when its loops run."""
    values = {"pool_id": POOL, "run": RUN, "deployment": Path("unused"), "public_url": "http://127.0.0.1:8004"}
    settings = GatewaySettings(**values | more)
    app = build_gateway(
        settings, redis=connect_redis(redis_url, retries=0), ledger=ledger, key=key, clock=clock, with_loops=with_loops
    )
    started = threading.Event()
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: FastAPI) -> AsyncIterator[None]:
        async with inner(running):
            app.state.loop = asyncio.get_running_loop()
            started.set()
            yield

    app.router.lifespan_context = lifespan
    return app, started


def tokens_of(request: AssignedRequest, choice: int, count: int) -> list[int]:
    """Returns the tokens that an honest worker draws: they depend on seed and choice only."""
    seed = bytes.fromhex(request.seed[2:])
    return [(seed[place % 32] + choice * 7 + place) % 26 for place in range(count)]


def record_of(answer: Any) -> dict[str, Any]:
    """Returns the field `muster` of an answer of OpenAI's client."""
    record: dict[str, Any] = answer.muster
    return record


def text_of(tokens: Sequence[int]) -> str:
    """Returns the text of tokens."""
    return "".join(chr(97 + token % 26) for token in tokens)


class GatewayTask:
    """A worker's task: a stranger's client of the session routes.

    Args:
        gateway: The gateway.
        node: The node's key.
        lease: The lease of the slot.
        replica: The replica that it calls.
    """

    def __init__(
        self,
        gateway: GatewayUnderTest,
        node: Key,
        lease: SignedLease,
        *,
        replica: int = 0,
        arithmetic: str = ARITHMETIC,
    ) -> None:
        self.gateway = gateway
        self.node = node
        self.lease = lease
        self.arithmetic = arithmetic
        self.base = gateway.replicas[replica].url
        self.session: ServingSession
        self._http = httpx.Client()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.cancelled: list[str] = []
        self.answered: list[str] = []

    def open(self) -> ServingSession:
        """Opens the session, or opens it again."""

        async def call() -> ServingSession:
            client = ServiceClient(
                f"{self.base}#{self.gateway.key.address}",
                key=self.node,
                clock=self.gateway.clock,
                allow_plain_http=True,
            )
            try:
                body = OpenSession(lease=self.lease, arithmetic=self.arithmetic)
                answer = await client.call("POST", "/v1/sessions", body=body, signed_answer=True)
                return answer.read(ServingSession)
            finally:
                await client.aclose()

        self.session = asyncio.run(call())
        return self.session

    def post(self, route: str, body: Any = None, *, timeout: float = 30) -> httpx.Response:
        content = b"" if body is None else body if isinstance(body, bytes) else body.model_dump_json().encode()
        return self._http.post(
            f"{self.base}/v1/sessions/{self.session.id}/{route}",
            content=content,
            headers={"Authorization": f"Bearer {self.session.token}"},
            timeout=timeout,
        )

    def take(self, *, free: int = 4, wait_s: float = 0) -> TakenRequests:
        answer = self.post("requests", TakeRequests(free=free, wait_ms=round(wait_s * 1000)))
        assert answer.status_code == 200, answer.text
        return TakenRequests.model_validate_json(answer.content)

    def take_one(self, *, wait_s: float = 5) -> AssignedRequest:
        (request,) = self.take(wait_s=wait_s).requests
        return request

    def send(self, *parts: AnswerPart) -> PartsTaken:
        answer = self.post("answers", AnswerParts(parts=parts))
        assert answer.status_code == 200, answer.text
        return PartsTaken.model_validate_json(answer.content)

    def fail(self, request: AssignedRequest, *, param: str = "", code: str = "context-length-exceeded") -> PartsTaken:
        failure = AnswerFailure(code=code, detail="the prompt is too long", param=param, hint="shorten it")
        return self.send(AnswerPart(id=request.id, attempt=request.attempt, number=0, failure=failure))

    def parts(
        self,
        request: AssignedRequest,
        *,
        count: int = 4,
        each: int = 2,
        tokens: Sequence[int] | None = None,
        **wrong: Any,
    ) -> list[AnswerPart]:
        """Returns the parts of a correct answer; `wrong` changes fields of the record."""
        body = _parsed(request)
        sampling = body.get("sampling_params", body)
        drawn = [list(tokens or tokens_of(request, choice, count)) for choice in range(request.choices)]
        logprobs = [[-0.5 - place / 8 for place in range(len(one))] for one in drawn]
        parts: list[AnswerPart] = []
        for at in range(0, max(len(one) for one in drawn), each):
            parts.append(
                AnswerPart(
                    id=request.id,
                    attempt=request.attempt,
                    number=len(parts),
                    tokens=tuple(
                        AnswerTokens(
                            choice=choice,
                            tokens=tuple(one[at : at + each]),
                            logprobs=tuple(logprobs[choice][at : at + each]),
                            text=text_of(one[at : at + each]),
                            pieces=tuple(text_of([token]) for token in one[at : at + each])
                            if request.with_pieces
                            else (),
                        )
                        for choice, one in enumerate(drawn)
                    ),
                )
            )
        wanted = (
            sampling.get("max_tokens") or sampling.get("max_completion_tokens") or (16 if "prompt" in body else LIMIT)
        )
        each_prompt = sampling.get("n") or 1
        prompts = body["prompt"] if isinstance(body.get("prompt"), list) else [body.get("prompt", "")]
        values: dict[str, Any] = {
            "version": self.lease.digest,
            "arithmetic": self.arithmetic,
            "seed": request.seed,
            "sampling": RecordedSampling(max_new_tokens=wanted, temperature=1.0, top_p=1.0, top_k=0),
            "prompts": [[1, 2, 3] for _ in prompts],
            "samples": [
                RecordedSample(
                    sample=choice,
                    prompt=choice // each_prompt,
                    token_ids=one,
                    logprobs=logprobs[choice],
                    finish="length",
                    proofs=None,
                )
                for choice, one in enumerate(drawn)
            ],
        } | wrong
        end = AnswerPart(
            id=request.id, attempt=request.attempt, number=len(parts), record=AnswerRecord.model_validate(values)
        )
        return [*parts, end]

    def answer(self, request: AssignedRequest, **options: Any) -> PartsTaken:
        """Sends a whole answer."""
        self.answered.append(request.id)
        return self.send(*self.parts(request, **options))

    def close(self) -> ServedList:
        """Closes the session and returns the list, whose signature it checks."""
        answer = self.post("close")
        assert answer.status_code == 200, answer.text
        signed = SignedServedList.model_validate_json(answer.content)
        assert signed.signer(work_key=self.lease.lease.key.hash, domain=DOMAIN) == self.gateway.key.address
        return signed.parse()

    def start(
        self, answer: Callable[[GatewayTask, AssignedRequest], object] | None = None, *, free: int = 4
    ) -> GatewayTask:
        """Answers requests in a thread until the session closes or `stop`."""
        respond = answer or (lambda task, request: task.answer(request))

        def work() -> None:
            while not self._stopping.is_set():
                taken = self.take(free=free, wait_s=1)
                self.cancelled += taken.cancelled
                for request in taken.requests:
                    respond(self, request)
                if taken.closing:
                    return

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stops answering."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10)
        self._http.close()
        self._http = httpx.Client()


def _parsed(request: AssignedRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.body)
    return found


def eventually(condition: Callable[[], Any], *, seconds: float = 10) -> Any:
    """Polls until a condition holds, and returns its value."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "the condition did not become true"
        time.sleep(0.01)
    return found
