"""Redis access of one pool: plain commands, and Lua scripts that share round trips.

While script calls are in flight, further calls wait. As soon as a connection is free, all waiting calls are sent in one
batch. No call waits for a batch to become full. Under load the batches grow, which lowers the CPU cost of each call in
Python.
"""

from __future__ import annotations

import asyncio
import math
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
from protocol.runtime.randomness import token_hex

R = TypeVar("R")
T = TypeVar("T")

MOST_TOGETHER = 128
"""Maximum number of calls per batch. Such a batch has about 10 kB, and takes less than a millisecond in Redis."""


@dataclass(slots=True)
class _Call:
    script: Script
    arguments: Sequence[Argument]
    answer: asyncio.Future[Any]


class Database(ScriptRunner):
    """Redis of one pool. Redis errors are raised as `StoreUnavailable`.

    Unlike `ScriptRunner`, it sends script calls in batches, and does not repeat a call whose answer was lost.

    Args:
        redis: Client of the pool's Redis.
        keys: Prefix of the pool's Redis keys.
        connections: Number of batches that may be in flight at the same time.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, connections: int = 2) -> None:
        super().__init__(redis, keys=keys)
        self._waiting: list[_Call] = []
        self._connections = connections
        self._sending: set[asyncio.Task[None]] = set()

    async def ask(self, *command: Argument) -> Any:  # noqa: ANN401 - the type of the answer depends on the command
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
        """Returns the Redis key of these parts, which are not escaped: callers must validate them."""
        return self.prefix + ":".join(parts)

    async def run_many(self, calls: Sequence[ScriptCall[R]]) -> list[R]:
        """Runs calls in shared round trips, and returns their replies when all of them have ended.

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
        """Sends waiting calls over one connection, batch after batch, until no call waits."""
        while self._waiting:
            try:
                async with self._connection() as connection:
                    while self._waiting:
                        await self._send(connection, self._take())
            except Exception as error:  # noqa: BLE001 - passed on to the callers that wait
                # No connection was available. The calls of this batch fail. The next batch asks for a connection again.
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
        """Sends a batch and resolves its calls.

        If Redis lost scripts in a restart, they are loaded, and their calls are sent again.
        """
        try:
            unknown = await self._exchange(connection, batch)
            if unknown:
                for script in {call.script.sha: call.script for call in unknown}.values():
                    await self._redis.script_load(script.text)
                _fail(await self._exchange(connection, unknown), NoScriptError("Redis does not keep loaded scripts"))
        except Exception as error:  # noqa: BLE001 - passed on to the callers that wait
            _fail(batch, error)

    async def _exchange(self, connection: AbstractConnection, batch: Sequence[_Call]) -> list[_Call]:
        """Sends a batch and resolves its calls; returns the calls whose script Redis does not know.

        It packs commands with hiredis, and has one time limit for the whole batch. redis-py's own pipeline takes as
        much CPU per call as the check of a signature.
        """
        pack: Any = hiredis.pack_command  # its annotation allows only tuples of length 1
        packed = b"".join([pack(("EVALSHA", call.script.sha, "1", self.prefix, *call.arguments)) for call in batch])
        try:
            async with asyncio.timeout(connection.socket_timeout):
                await connection.send_packed_command(packed)
                answers = [await _answer(connection) for _ in batch]
        except BaseException:
            # The connection is closed, because the next batch would read the remaining answers of this one.
            await connection.disconnect(nowait=True)
            raise
        unknown = []
        for call, answer in zip(batch, answers, strict=True):
            if isinstance(answer, NoScriptError):
                unknown.append(call)
            else:
                _resolve(call, answer)
        return unknown


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Awaits calls concurrently until all have ended, so that scripts share round trips.

    Raises:
        Exception: The error of the first call that failed, in the order of `calls`.
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
        _resolve(call, error)


def _resolve(call: _Call, answer: object) -> None:
    if call.answer.done():  # the call has an answer already, or its caller was cancelled
        return
    if isinstance(answer, Exception):
        call.answer.set_exception(answer)
    else:
        call.answer.set_result(answer)


def new_id() -> str:
    """Returns a random id of 128 bits."""
    return token_hex(16)
