"""A served tiny model, with a chat template, for tests of `rollouts.serving`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from openai import OpenAI

from protocol.http.tokens import new_token
from rollouts.engines.torch.engine import TorchEngine
from rollouts.precision import Dtype
from rollouts.serving.access import token_book
from rollouts.serving.app import build_serving
from rollouts.serving.backend import Backend
from rollouts.serving.limits import RequestLimits
from tests.kit.http_server import served
from tests.kit.tiny_model import chat_folder

__all__ = ["NAME", "ServedModel", "chat_folder", "record_of", "served_model", "wait_for"]

NAME = "tiny"


@dataclass
class ServedModel:
    """A running service.

    Args:
        url: Its URL.
        backend: Its engine.
        app: Its application.
        folder: The first version's folder.
        token: Token of clients.
        admin: Token of the administrator.
    """

    url: str
    backend: Backend
    app: FastAPI
    folder: Path
    token: str = field(repr=False)
    admin: str = field(repr=False)
    openai: OpenAI = field(init=False)

    def __post_init__(self) -> None:
        self.openai = OpenAI(base_url=f"{self.url}/v1", api_key=self.token, max_retries=0, timeout=60)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The service's event loop."""
        return self.backend._mailbox._loop

    def post(self, path: str, body: Any = None, *, admin: bool = False, **query: str) -> httpx.Response:
        """Sends a JSON body."""
        token = self.admin if admin else self.token
        return httpx.post(
            self.url + path,
            content=None if body is None else json.dumps(body),
            params=query,
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        )

    def complete(self, prompt: object = "12+34=", **options: Any) -> Any:
        """Returns a completion through OpenAI's client."""
        create: Any = self.openai.completions.create
        return create(**{"model": NAME, "prompt": prompt, "max_tokens": 8} | options)

    def chat(self, text: str = "12+34=", **options: Any) -> Any:
        """Returns the answer to a chat through OpenAI's client."""
        messages = [{"role": "user", "content": text}]
        create: Any = self.openai.chat.completions.create
        return create(**{"model": NAME, "messages": messages, "max_tokens": 8} | options)

    def wait_until_idle(self) -> None:
        """Waits until no answer is in the engine."""
        wait_for(lambda: self.backend.answers == 0 and self.backend.unanswered == 0)


def record_of(answer: Any) -> dict[str, Any]:
    """Returns the field `muster` of an answer of OpenAI's client."""
    record: dict[str, Any] = answer.muster
    return record


def wait_for(condition: Callable[[], bool], *, seconds: float = 30) -> None:
    """Polls until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition did not become true"
        time.sleep(0.01)


@contextmanager
def served_model(
    folder: Path, *, limits: RequestLimits | None = None, with_proofs: bool = True
) -> Iterator[ServedModel]:
    """Serves a folder with the torch engine."""
    engine = TorchEngine(dtype=Dtype.FLOAT32, max_batch=8)
    backend = Backend(engine, folder, limits=limits, with_proofs=with_proofs)
    token, admin = new_token(), new_token()
    app = build_serving(backend, name=NAME, tokens=token_book(token, admin=admin))
    with served(app) as url:
        yield ServedModel(url=url, backend=backend, app=app, folder=folder, token=token, admin=admin)
