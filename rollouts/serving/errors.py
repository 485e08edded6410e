"""Errors of the OpenAI-compatible service, besides those of `protocol.openai.errors`.

RateLimited
└── TooManyAnswers   429: too many answers are waiting
Unavailable
└── NotServing       503: the engine is paused for too long, is stopping, or failed
"""

from __future__ import annotations

from datetime import timedelta

from protocol.errors import RateLimited, Unavailable


class TooManyAnswers(RateLimited):
    """Too many answers are waiting for the engine."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, retry_after=timedelta(seconds=1), hint="send fewer requests at a time, or ask again")


class NotServing(Unavailable):
    """The engine does not take requests now."""

    code = "not-serving"
