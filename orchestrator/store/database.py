"""One pool's part of Redis: plain commands, and Lua scripts that share round trips.

Script calls that arrive while others are under way are sent together as soon as a connection is free. No call waits for
a batch to fill; under load batches grow by themselves, and the cost per call in Python falls.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError

from protocol.redis.connection import STORE_ERRORS, RedisKeys, store_errors, store_unavailable
from protocol.redis.script_call import Argument, Script, ScriptCall, ScriptRunner

R = TypeVar("R")
T = TypeVar("T")

MOST_TOGETHER = 128
"""Calls per batch: some ten kilobytes, and under a millisecond of Redis' time."""


@dataclass(slots=True)
class _Call:
    script: Script
    arguments: Sequence[Argument]
    answer: asyncio.Future[Any]


class Database(ScriptRunner):
    """Redis of one pool. Redis errors are raised as `StoreUnavailable`.

    Scripts of this class, unlike those of `ScriptRunner`, are not repeated after a lost answer.

    Args:
        redis: Client of the pool's Redis.
        keys: The pool's keys.
        connections: Batches that may be under way at the same time.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, connections: int = 2) -> None:
        super().__init__(redis, keys=keys)
        self._waiting: list[_Call] = []
        self._connections = connections
        self._sending: set[asyncio.Task[None]] = set()

    async def ask(self, *command: Argument) -> Any:  # noqa: ANN401 - what Redis answers depends on the command
        """Runs one command and returns its answer.

        Raises:
            StoreUnavailable: Redis is down.
        """
        with store_errors():
            return await self._redis.execute_command(*command)

    async def ask_many(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Runs commands in one round trip and returns their answers.

        Raises:
            StoreUnavailable: Redis is down.
        """
        if not commands:
            return []
        with store_errors():
            async with self._redis.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return list(await pipeline.execute())

    def key(self, *parts: str) -> str:
        """Returns the key made of these parts, which the caller has checked."""
        return self.prefix + ":".join(parts)

    async def run_many(self, calls: Sequence[ScriptCall[R]]) -> list[R]:
        """Runs calls in shared round trips and returns their replies; all have ended when it returns or raises.

        Raises:
            StoreUnavailable: Redis is down; each call may or may not have run.
        """
        return await together(self.run(call) for call in calls)

    async def _execute(self, script: Script, arguments: Sequence[Argument]) -> Any:  # noqa: ANN401 - Redis' answer
        call = _Call(script, arguments, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if len(self._sending) < self._connections:
            task = asyncio.create_task(self._drain())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        try:
            return await call.answer
        except STORE_ERRORS as error:
            raise store_unavailable(error) from error

    async def _drain(self) -> None:
        """Sends waiting calls, batch after batch over one connection, until none is left."""
        while self._waiting:
            try:
                async with self._connection() as connection:
                    while self._waiting:
                        await self._send(connection, self._take())
            except Exception as error:  # noqa: BLE001 - passed on to the callers that wait
                # There was no free connection. The next batch tries again.
                _fail(self._take(), error)

    def _take(self) -> list[_Call]:
        batch, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
        return batch

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AbstractConnection]:
        pool = self._redis.connection_pool
        connection = await pool.get_connection()
        try:
            yield connection
        finally:
            await pool.release(connection)

    async def _send(self, connection: AbstractConnection, batch: Sequence[_Call]) -> None:
        """Makes one round trip, and a second one for scripts that Redis lost in a restart. Settles every call."""
        try:
            forgotten = await self._exchange(connection, batch)
            if forgotten:
                for script in {call.script.sha: call.script for call in forgotten}.values():
                    await self._redis.script_load(script.text)
                _fail(await self._exchange(connection, forgotten), NoScriptError("Redis forgets scripts at once"))
        except Exception as error:  # noqa: BLE001 - passed on to the callers that wait
            _fail(batch, error)

    async def _exchange(self, connection: AbstractConnection, batch: Sequence[_Call]) -> list[_Call]:
        """Sends a batch and gives each call its answer; returns the calls whose script Redis does not know.

        Packs with hiredis and reads under one timeout: redis-py's own pipeline costs as much as checking a signature.
        """
        pack: Any = hiredis.pack_command  # its annotation knows tuples of one only
        packed = b"".join([pack(("EVALSHA", call.script.sha, "1", self.prefix, *call.arguments)) for call in batch])
        try:
            async with asyncio.timeout(connection.socket_timeout):
                await connection.send_packed_command(packed)
                answers = [await _answer(connection) for _ in batch]
        except BaseException:
            # Unread answers would be taken for those of the next batch.
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
    """Awaits calls concurrently, so that their scripts share round trips; all have ended when it returns or raises.

    Raises:
        Exception: The first one in the order of the calls.
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
    if call.answer.done():  # settled before, or its caller was cancelled
        return
    if isinstance(answer, Exception):
        call.answer.set_exception(answer)
    else:
        call.answer.set_result(answer)


def new_id() -> str:
    """Returns a random id of 128 bits."""
    return secrets.token_hex(16)
