"""A gateway for tests of tasks and workers, over real HTTP: one process, state in memory, controlled by the test."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response

from protocol.identifiers import digest
from protocol.identity.keys import Key
from protocol.identity.signing import check_signature, read_stamp, sign_response
from protocol.openai.bodies import ChatBody, CompletionBody, GenerateBody
from protocol.runtime.randomness import token_hex
from protocol.wire.answers import AnswerRecord
from protocol.wire.served import RequestKind, ServedList, ServedRequest, SignedServedList, answer_digest
from protocol.wire.serving import (
    AnswerFailure,
    AnswerPart,
    AnswerParts,
    AssignedRequest,
    OpenSession,
    PartsTaken,
    ServingSession,
    TakenRequests,
    TakeRequests,
)
from tests.kit.http_server import served

_BODIES: dict[RequestKind, Any] = {
    RequestKind.COMPLETION: CompletionBody,
    RequestKind.CHAT: ChatBody,
    RequestKind.GENERATE: GenerateBody,
}


@dataclass
class Session:
    """A session of one lease."""

    id: str
    token: str
    opened: OpenSession
    ends_at_ms: int
    answered: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    signed: SignedServedList | None = None
    closing: bool = False
    closed: bool = False


@dataclass
class Exchange:
    """A client's request and the parts of its answer."""

    assigned: AssignedRequest
    session: str = ""
    parts: list[AnswerPart] = field(default_factory=list)

    @property
    def record(self) -> AnswerRecord | None:
        return self.parts[-1].record if self.parts else None

    @property
    def failure(self) -> AnswerFailure | None:
        return self.parts[-1].failure if self.parts else None

    @property
    def ended(self) -> bool:
        return self.record is not None or self.failure is not None

    def choice(self, index: int) -> tuple[str, list[int], list[float], list[str]]:
        """Text, tokens, log-probabilities and pieces of a choice, from the parts."""
        text, tokens, logprobs, pieces = "", list[int](), list[float](), list[str]()
        for each in (one for part in self.parts for one in part.tokens if one.choice == index):
            text += each.text
            tokens += each.tokens
            logprobs += each.logprobs
            pieces += each.pieces
        return text, tokens, logprobs, pieces


class ScriptedGateway:
    """Answers tasks as `protocol.wire.serving` says.

    Args:
        life_s: Time after which sessions end; None for the lease's end less 20 s.
    """

    def __init__(self, *, life_s: float | None = None) -> None:
        self.key = Key.generate()
        self.life_s = life_s
        self.url = ""
        self.sessions: dict[str, Session] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.waiting: list[str] = []
        self.cancelled: set[str] = set()
        self.closing = False
        self.margin_ms = 20_000
        """Time before the lease's end at which sessions end."""
        self.refuses = False
        """Whether no session is opened."""
        self.down = False
        """Whether every call gets a 503."""
        self.lost_answers = 0
        """Number of further calls with parts that are executed, but answered with a 503."""
        self.opens, self.calls = 0, 0
        self.most_free = 0
        self.faults: list[str] = []
        self.list_changes: dict[str, Any] = {}
        """Changes to the requests in signed lists."""
        self.app = self._build()

    def ask(self, kind: RequestKind, body: dict[str, Any], *, pieces: bool = False, choices: int | None = None) -> str:
        """Adds a client's request; returns its id."""
        identifier, content = token_hex(16), json.dumps(body)
        assigned = AssignedRequest(
            id=identifier,
            attempt=0,
            kind=kind,
            body=content,
            seed=digest(hashlib.sha256(content.encode()).digest()),
            choices=_BODIES[kind].parse(content.encode()).choices if choices is None else choices,
            with_pieces=pieces,
        )
        self.exchanges[identifier] = Exchange(assigned)
        self.waiting.append(identifier)
        return identifier

    def complete(self, prompt: object = "12+34=", **options: Any) -> str:
        """Adds a completion's request."""
        return self.ask(RequestKind.COMPLETION, {"model": "m", "prompt": prompt, "max_tokens": 8} | options)

    def revoke_tokens(self) -> None:
        """Refuses the tokens of all sessions from now on."""
        for session in self.sessions.values():
            session.token = token_hex(16)

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serves the gateway on a real port."""
        with served(self.app) as url:
            self.url = url
            yield url

    def _build(self) -> FastAPI:
        app = FastAPI()
        app.state.stopping = threading.Event()
        app.middleware("http")(self._outage)
        app.get("/v1/identity")(self._identity)
        app.post("/v1/sessions")(self._open)
        app.post("/v1/sessions/{name}/requests")(self._requests)
        app.post("/v1/sessions/{name}/answers")(self._answers)
        app.post("/v1/sessions/{name}/close")(self._close)
        return app

    async def _outage(self, request: Request, proceed: Any) -> Response:
        return _problem(503, "down") if self.down else await proceed(request)

    async def _identity(self) -> dict[str, object]:
        contract = "0x" + "12" * 20
        return {"address": self.key.address, "chain_id": 1, "contract": contract, "service": "gateway"}

    async def _open(self, request: Request) -> Response:
        body = await request.body()
        stamp = read_stamp(request.headers)
        check_signature(stamp, method="POST", target="/v1/sessions", body_sha256=hashlib.sha256(body).hexdigest())
        opened = OpenSession.model_validate_json(body)
        if self.refuses or stamp.audience != self.key.address or stamp.address != opened.lease.node:
            return _problem(403, "forbidden")
        self.opens += 1
        name = opened.lease.lease.hash
        ends = opened.lease.expiry * 1000 - self.margin_ms
        if self.life_s is not None:
            ends = min(ends, int((time.time() + self.life_s) * 1000))
        session = self.sessions.setdefault(name, Session(token_hex(16), "", opened, ends))
        session.token = token_hex(16)
        answer = ServingSession(
            id=session.id,
            url=self.url,
            token=session.token,
            gateway=self.key.address,
            ends_at_ms=session.ends_at_ms,
        )
        response = _json(answer)
        signed = sign_response(
            self.key, address=stamp.address, nonce=stamp.nonce, status=200, body=bytes(response.body)
        )
        response.headers.update(signed)
        return response

    def _session(self, name: str, request: Request) -> Session | None:
        for session in self.sessions.values():
            if session.id == name and request.headers.get("authorization") == f"Bearer {session.token}":
                return session
        return None

    async def _requests(self, name: str, request: Request) -> Response:
        asked = TakeRequests.model_validate_json(await request.body())
        self.most_free = max(self.most_free, asked.free)
        until = time.monotonic() + asked.wait_ms / 1000
        while True:
            session = self._session(name, request)
            if session is None:
                return _problem(401, "wrong-session")
            if session.closed:
                return _problem(409, "session-closed")
            closing = self.closing or session.closing or time.time() * 1000 >= session.ends_at_ms
            given = [] if closing else self._give(session, asked.free)
            gone = tuple(sorted(self.cancelled & set(session.taken)))
            if given or gone or closing or time.monotonic() >= until:
                return _json(TakenRequests(requests=tuple(given), cancelled=gone, closing=closing))
            await asyncio.sleep(0.01)

    def _give(self, session: Session, free: int) -> list[AssignedRequest]:
        given = []
        while self.waiting and self.exchanges[self.waiting[0]].assigned.choices <= free:
            exchange = self.exchanges[self.waiting.pop(0)]
            free -= exchange.assigned.choices
            exchange.session = session.id
            session.taken.append(exchange.assigned.id)
            given.append(exchange.assigned)
        return given

    async def _answers(self, name: str, request: Request) -> Response:
        session = self._session(name, request)
        if session is None:
            return _problem(401, "wrong-session")
        if session.closed:
            return _problem(409, "session-closed")
        self.calls += 1
        gone: set[str] = set()
        for part in AnswerParts.model_validate_json(await request.body()).parts:
            exchange = self.exchanges[part.id]
            if part.id in self.cancelled or exchange.session != session.id or exchange.assigned.attempt != part.attempt:
                gone.add(part.id)
            elif part.number == len(exchange.parts):
                exchange.parts.append(part)
                if part.record is not None:
                    self._check(exchange, part.record)
                    session.answered.append(part.id)
            elif part.number > len(exchange.parts):
                self.faults.append(f"part {part.number} came after part {len(exchange.parts) - 1}")
        if self.lost_answers:
            self.lost_answers -= 1
            return _problem(503, "lost")
        return _json(PartsTaken(cancelled=tuple(sorted(gone))))

    def _check(self, exchange: Exchange, record: AnswerRecord) -> None:
        if record.seed != exchange.assigned.seed:
            self.faults.append("another seed")
        for sample in record.samples:
            _, tokens, logprobs, pieces = exchange.choice(sample.sample)
            if (sample.token_ids, sample.logprobs) != (tokens, logprobs):
                self.faults.append("the parts are not the record")
            if len(pieces) != (len(tokens) if exchange.assigned.with_pieces else 0):
                self.faults.append("pieces are missing or were not asked for")

    async def _close(self, name: str, request: Request) -> Response:
        session = self._session(name, request)
        if session is None:
            return _problem(401, "wrong-session")
        session.closed = True
        if session.signed is None:
            session.signed = self._sign(session)
        return _json(session.signed)

    def _sign(self, session: Session) -> SignedServedList:
        lease = session.opened.lease
        rows = tuple(self._listed(self.exchanges[name]) for name in session.answered)
        return SignedServedList.sign(
            ServedList(requests=rows), work_key=lease.lease.key.hash, key=self.key, domain=lease.domain
        )

    def _listed(self, exchange: Exchange) -> ServedRequest:
        assigned = exchange.assigned
        shown = [exchange.choice(index)[:2] for index in range(assigned.choices)]
        values: dict[str, Any] = {
            "id": assigned.id,
            "kind": assigned.kind,
            "body": assigned.body,
            "seed": assigned.seed,
            "choices": assigned.choices,
            "answer": answer_digest(shown),
        }
        return ServedRequest(**values | self.list_changes)


def _json(model: Any) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


def _problem(status: int, code: str) -> Response:
    problem = {"title": code, "status": status, "detail": f"the test says {code}", "code": code, "hint": "none"}
    content = json.dumps(problem | {"retryable": status >= 500})
    return Response(content, status_code=status, media_type="application/problem+json")
