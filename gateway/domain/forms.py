"""JSON of answers in the form that the client's route has."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gateway.domain.answers import CollectedAnswer
from protocol.openai.replies import ReplyFormat, generated, usage_of
from protocol.wire.answers import AnswerRecord
from protocol.wire.served import RequestKind

PREFIXES = {RequestKind.COMPLETION: "cmpl", RequestKind.CHAT: "chatcmpl", RequestKind.GENERATE: "gen"}
"""First part of an answer's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Values of the answer's JSON that are known when the request is admitted; stored with the request.

    Args:
        identifier: Id of the answer.
        created: Unix time in seconds.
        model: Name of the model.
        logprobs: Whether the client wants log-probabilities.
    """

    identifier: str
    created: int
    model: str
    logprobs: bool

    def encode(self) -> bytes:
        """Returns the JSON."""
        return json.dumps([self.identifier, self.created, self.model, self.logprobs]).encode()


def answer_form(content: bytes, *, kind: RequestKind, arithmetic: str, version: str) -> ReplyFormat:
    """Returns the form of an answer from the stored envelope."""
    identifier, created, model, logprobs = json.loads(content)
    return ReplyFormat(
        identifier=identifier,
        created=created,
        model=model,
        chat=kind is RequestKind.CHAT,
        logprobs=logprobs,
        fingerprint=f"{arithmetic}@{version[:18]}",
    )


def whole_answer(form: ReplyFormat, kind: RequestKind, collected: CollectedAnswer, record: AnswerRecord) -> bytes:
    """Returns the JSON of an answer that is not streamed."""
    choices = collected.whole(record)
    usage = usage_of(*collected.used(record))
    plain = record.model_dump(mode="json")
    if kind is RequestKind.GENERATE:
        return generated(form.identifier, choices, model=form.model, logprobs=form.logprobs, usage=usage, record=plain)
    return form.whole(choices, usage=usage, record=plain)
