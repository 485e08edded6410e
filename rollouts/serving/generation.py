"""One request's answers on their way from the engine's thread to the client's task."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from protocol.errors import MusterError
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import Completion, DrawnToken, Job, SampleRequest
from rollouts.sampling.parameters import SamplingParameters
from rollouts.serving.errors import NotServing
from rollouts.serving.limits import RequestLimits

News = DrawnToken | Completion
"""A drawn token, or an answer whose tokens were all reported."""


class SlowReader(MusterError):
    """The client reads a stream more slowly than the engine generates it."""

    code = "slow-reader"
    default_hint = "read the stream as it arrives, or ask for an answer that is not streamed"


class AnswerChanged(MusterError):
    """The engine computed an answer again and drew another token than the stream already has."""

    code = "answer-changed"
    retryable = True
    default_hint = "send the request again"


class Mailbox:
    """Delivers calls from other threads to an event loop, many with one wake-up.

    Waking the loop costs a system call, and an engine reports a token for each answer in each step.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._woken = False

    def post(self, call: Callable[[], None]) -> None:
        """Lets the event loop make a call; calls are made in their order."""
        self._calls.append(call)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # before the calls: a later post must wake the loop again
        while self._calls:
            self._calls.popleft()()


class Generation:
    """The answers to one request; a context manager that stops the engine's work when the client is served or gone.

    Args:
        requests: One request for each choice; sample numbers are 0, 1, …
        parameters: Sampling parameters.
        mailbox: Delivers the engine's reports to the event loop.
        streamed: Whether tokens are reported as they are drawn.
        limits: Bounds on the tokens that are kept for the reader.
    """

    def __init__(
        self,
        requests: tuple[SampleRequest, ...],
        parameters: SamplingParameters,
        *,
        mailbox: Mailbox,
        streamed: bool,
        limits: RequestLimits,
    ) -> None:
        self.requests = requests
        self.parameters = parameters
        self._mailbox = mailbox
        self._limits = limits
        self._full_since: float | None = None
        """The event loop's time at which more tokens than allowed were unread; None if fewer are."""
        self._stopped = threading.Event()
        self._news: list[News] = []
        self._drawn: list[list[int]] = [[] for _ in requests]
        self._wake = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None
        self.job = Job(
            requests=requests,
            parameters=parameters,
            should_stop=self._stopped.is_set,
            on_answer=lambda answer: mailbox.post(lambda: self._receive(answer)),
            on_token=(lambda token: mailbox.post(lambda: self._receive_token(token))) if streamed else None,
        )
        self.job.done.add_done_callback(lambda _: mailbox.post(self._end))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()

    async def news(self) -> list[News]:
        """Waits for tokens and answers, and returns all that have arrived; empty after the last answer.

        Raises:
            MusterError: The engine failed, or the answers were stopped.
        """
        while not self._news and not self._ended and self._error is None:
            self._wake.clear()
            await self._wake.wait()
        found, self._news, self._full_since = self._news, [], None
        if not found and self._error is not None:
            raise self._error
        return found

    async def completions(self) -> list[Completion]:
        """Waits for all answers, and returns them by sample number.

        Raises:
            MusterError: As for `news`.
        """
        found: list[Completion] = []
        while news := await self.news():
            found += [one for one in news if isinstance(one, Completion)]
        return sorted(found, key=lambda one: one.sample)

    def abort(self, error: MusterError) -> None:
        """Stops the engine's work; the reader gets this error."""
        if not self._ended and self._error is None:
            self._error = error
            self._stopped.set()
            self._wake.set()

    def _receive(self, news: News) -> None:
        if self._error is None:
            self._news.append(news)
            self._wake.set()

    def _receive_token(self, token: DrawnToken) -> None:
        drawn = self._drawn[token.sample]
        if token.position < len(drawn):  # the engine computes the answer again, because memory ran out
            if drawn[token.position] != token.token:
                self.abort(AnswerChanged(f"the engine drew another token {token.position} when it ran out of memory"))
            return
        drawn.append(token.token)
        self._receive(token)
        if len(self._news) <= self._limits.unread_tokens:
            return
        now = asyncio.get_running_loop().time()
        if self._full_since is None:
            self._full_since = now
        elif now - self._full_since >= self._limits.unread_for.total_seconds():
            self._news.clear()
            self.abort(SlowReader(f"the client has not read {self._limits.unread_tokens} tokens of its stream"))

    def _end(self) -> None:
        error = self.job.done.exception()
        if self._error is None and error is not None:
            stopped = isinstance(error, GenerationStopped)
            self._error = NotServing("the service stopped the answer") if stopped else error
        self._ended = True
        self._wake.set()
