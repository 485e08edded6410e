"""Blocking calls run in threads, unless another runner is set."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from protocol.runtime.threads import replaced_runner, run_in_thread, run_inline

_request = ContextVar("_request", default="")


def _where(*parts: str, sign: str = "") -> tuple[int, str, str]:
    return threading.get_ident(), sign.join(parts), _request.get()


async def test_a_call_runs_in_a_thread_with_its_arguments_and_context() -> None:
    _request.set("mine")
    thread, text, request = await run_in_thread(_where, "a", "b", sign="-")
    assert (thread == threading.get_ident(), text, request) == (False, "a-b", "mine")


async def test_errors_reach_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(divmod, 1, 0)
    with replaced_runner(run_inline), pytest.raises(ZeroDivisionError):
        await run_in_thread(divmod, 1, 0)


async def test_a_replaced_runner_gets_every_call_of_the_block() -> None:
    calls = []

    async def runner(call: Callable[[], Any]) -> object:
        calls.append(call)
        return await run_inline(call)

    with replaced_runner(runner):
        thread, text, _ = await asyncio.create_task(run_in_thread(_where, "a"))
    assert (thread, text, len(calls)) == (threading.get_ident(), "a", 1)
    assert (await run_in_thread(_where))[0] != threading.get_ident()
    assert len(calls) == 1
