"""One pool's part of Redis: plain commands, and Lua scripts in shared round trips.

Scripts run by hash, and are loaded again when Redis forgot them.
Calls that come while others are on their way leave together in one pipeline as soon as the connection is free. Nobody
waits for a batch to fill; under load the batches grow by themselves, and what a call costs in Python falls.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar, cast

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError

from protocol.http.replay_guard import ADMISSION_LUA
from protocol.runtime.redis import STORE_ERRORS, RedisKeys, store_errors, store_unavailable

Argument = str | bytes | int | float
T = TypeVar("T")

MOST_TOGETHER = 128
"""Calls per pipeline: some ten kilobytes, and under a millisecond of Redis' time."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and what Redis knows it by."""

    text: str
    sha: str


def read_script(name: str, constants: Mapping[str, float] | None = None) -> Script:
    """Reads `scripts/{name}.lua`, with the prelude before it, and before that constants that never change."""
    folder = resources.files("orchestrator.store") / "scripts"
    parts = [(folder / "prelude.lua").read_text(), (folder / f"{name}.lua").read_text()]
    if name == "heartbeat":
        parts.insert(0, ADMISSION_LUA)
    parts = [*(f"local {key} = {value!r}" for key, value in (constants or {}).items()), *parts]
    text = "\n".join(parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


NAMES = (
    "command",
    "delete_task",
    "end",
    "facts",
    "heartbeat",
    "lease",
    "logs",
    "overdue",
    "patch_task",
    "place",
    "relay_again",
    "relay_put",
    "relay_settle",
    "renew",
    "run_forget",
    "run_grant",
    "run_slot",
    "run_state",
    "run_trainer",
    "transition",
    "upload",
    "verdict",
)


@dataclass(slots=True)
class _Call:
    script: Script
    keys: tuple[str, ...]
    arguments: Sequence[Argument]
    answer: asyncio.Future[Any]


class Database:
    """Speaks to Redis for one pool. Every error of Redis leaves it as `StoreUnavailable`.

    Args:
        redis: Where they run.
        keys: The pool's keys; their prefix is the first key of every script.
        lines: Pipelines that may be under way at a time.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, lines: int = 2) -> None:
        self._redis = redis
        self.prefix = keys.prefix
        self._scripts = {name: read_script(name) for name in NAMES}
        self._waiting: list[_Call] = []
        self._lines = lines
        self._running: set[asyncio.Task[None]] = set()

    def fix(self, name: str, constants: Mapping[str, float]) -> None:
        """Writes constants into a script, for one that is called so often that sending them costs more."""
        self._scripts[name] = read_script(name, constants)

    async def ask(self, *command: Argument) -> Any:  # noqa: ANN401 - what Redis answers depends on the command
        """Runs one command and returns its answer.

        Raises:
            StoreUnavailable: Redis is down.
        """
        with store_errors():
            line: Any = self._redis  # its commands are untyped in redis-py
            return await line.execute_command(*command)

    async def ask_many(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Runs commands in one round trip and returns their answers.

        Raises:
            StoreUnavailable: Redis is down.
        """
        if not commands:
            return []
        with store_errors():
            async with self._redis.pipeline(transaction=False) as pipeline:
                line: Any = pipeline  # its commands are untyped in redis-py
                for command in commands:
                    line.execute_command(*command)
                return list(await pipeline.execute())

    def key(self, *parts: str) -> str:
        """The key of these parts, none of which comes from a peer unchecked."""
        return self.prefix + ":".join(parts)

    async def call(
        self,
        name: str,
        *arguments: Argument,
        keys: tuple[str, ...] = (),
    ) -> Any:  # noqa: ANN401 - each script has its own answer
        """Runs one script and returns its answer.

        Raises:
            StoreUnavailable: Redis is down; the script may or may not have run.
        """
        call = _Call(self._scripts[name], (self.prefix, *keys), arguments, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if len(self._running) < self._lines:
            task = asyncio.create_task(self._drain())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        try:
            return await call.answer
        except STORE_ERRORS as error:
            raise store_unavailable(error) from error

    async def _drain(self) -> None:
        """Sends what waits, batch after batch over one connection, until nothing does."""
        while self._waiting:
            try:
                async with self._connection() as connection:
                    while self._waiting:
                        await self._send(connection, self._take())
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait for answers
                # No connection was to be had. Who came for it hears so; who comes later is tried again.
                _fail(self._take(), error)

    def _take(self) -> list[_Call]:
        batch, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
        return batch

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AbstractConnection]:
        pool: Any = self._redis.connection_pool  # untyped in redis-py
        connection = await pool.get_connection()
        try:
            yield connection
        finally:
            await pool.release(connection)

    async def _send(self, connection: AbstractConnection, batch: Sequence[_Call]) -> None:
        """One round trip, and a second one for scripts that Redis forgot. Every call is settled, well or not."""
        try:
            forgotten = await self._exchange(connection, batch)
            if forgotten:
                for script in {call.script.sha: call.script for call in forgotten}.values():
                    await self._redis.script_load(script.text)
                _fail(await self._exchange(connection, forgotten), NoScriptError("Redis forgets scripts at once"))
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait for the answers
            _fail(batch, error)

    async def _exchange(self, connection: AbstractConnection, batch: Sequence[_Call]) -> list[_Call]:
        """Sends a batch and hands out its answers, each to its own call; returns those whose script is not there.

        Packed by hiredis and read under one timeout, because redis-py's way costs as much as checking a signature.
        """
        pack: Any = hiredis.pack_command  # its annotation knows tuples of one only
        packed = b"".join(
            [pack(("EVALSHA", call.script.sha, str(len(call.keys)), *call.keys, *call.arguments)) for call in batch]
        )
        try:
            async with asyncio.timeout(connection.socket_timeout):
                await connection.send_packed_command(packed)
                answers = [await _answer(connection) for _ in batch]
        except BaseException:
            # Answers that were not read would be taken for those of the next batch.
            await connection.disconnect(nowait=True)
            raise
        forgotten = []
        for call, answer in zip(batch, answers, strict=True):
            if isinstance(answer, NoScriptError):
                forgotten.append(call)
            else:
                _settle(call, answer)
        return forgotten


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Answers of calls that don't wait for each other: those of scripts share round trips. All end before it returns.

    Raises:
        Exception: The first that one of them raised.
    """
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast("list[T]", answers)


async def _answer(connection: AbstractConnection) -> object:
    try:
        return await connection.read_response(timeout=math.inf)  # the whole batch has one timeout
    except ResponseError as error:
        return error


def _fail(batch: Sequence[_Call], error: Exception) -> None:
    for call in batch:
        _settle(call, error)


def _settle(call: _Call, answer: object) -> None:
    if call.answer.done():  # settled already, or its caller has gone
        return
    if isinstance(answer, Exception):
        call.answer.set_exception(answer)
    else:
        call.answer.set_result(answer)


def new_id() -> str:
    """A random id of 128 bits."""
    return secrets.token_hex(16)
