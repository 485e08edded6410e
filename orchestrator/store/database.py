"""One pool's part of Redis: plain commands, and Lua scripts in shared round trips.

Scripts run by hash, and are loaded again when Redis forgot them.
Calls that come while others are on their way leave together in one pipeline as soon as the connection is free. Nobody
waits for a batch to fill; under load the batches grow by themselves, and what a call costs in Python falls.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError

from protocol.admission import ADMISSION_LUA
from protocol.redis import RedisKeys, store_errors

Argument = str | bytes | int | float

MOST_TOGETHER = 128
"""Calls per pipeline: some ten kilobytes, and under a millisecond of Redis' time."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and what Redis knows it by."""

    text: str
    sha: str


def read_script(name: str, constants: Mapping[str, float] | None = None) -> Script:
    """Reads `scripts/{name}.lua`, with the prelude before it, and before that constants that never change."""
    folder = resources.files("orchestrator") / "scripts"
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
    "renew",
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
        with store_errors():
            return await call.answer

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            try:
                await self._send(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait for the answers
                for call in batch:
                    if not call.answer.done():
                        call.answer.set_exception(error)

    async def _send(self, batch: Sequence[_Call]) -> None:
        answers = await self._pipeline(batch)
        forgotten = [call for call, answer in zip(batch, answers, strict=True) if isinstance(answer, NoScriptError)]
        for call, answer in zip(batch, answers, strict=True):
            _settle(call, answer)
        if forgotten:
            for script in {call.script.sha: call.script for call in forgotten}.values():
                await self._redis.script_load(script.text)
            for call, answer in zip(forgotten, await self._pipeline(forgotten), strict=True):
                _settle(call, answer, final=True)

    async def _pipeline(self, batch: Sequence[_Call]) -> list[Any]:
        """One round trip. Packed by hiredis, because redis-py's own packing costs as much as checking a signature."""
        pack: Any = hiredis.pack_command  # its annotation knows tuples of one only
        packed = [
            pack(("EVALSHA", call.script.sha, str(len(call.keys)), *call.keys, *call.arguments)) for call in batch
        ]
        pool: Any = self._redis.connection_pool  # untyped in redis-py
        connection = await pool.get_connection()
        try:
            await connection.send_packed_command(b"".join(packed))
            return [await _answer(connection) for _ in batch]
        except BaseException:
            # Answers that were not read would be taken for those of the next batch.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)


async def _answer(connection: AbstractConnection) -> object:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _settle(call: _Call, answer: object, *, final: bool = False) -> None:
    if call.answer.done() or (isinstance(answer, NoScriptError) and not final):
        return
    if isinstance(answer, Exception):
        call.answer.set_exception(answer)
    else:
        call.answer.set_result(answer)
