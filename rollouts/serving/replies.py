"""Bodies of answers: whole, and as chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollouts.engines.interface import Completion, DrawnToken, FinishReason, SampleRequest
from rollouts.models.tokenizer import TextStream
from rollouts.precision import Arithmetic
from rollouts.sampling.parameters import SamplingParameters
from rollouts.serving.generation import News
from rollouts.serving.record import record_of
from rollouts.serving.version import ServedVersion

_FINISH = {FinishReason.EOS: "stop", FinishReason.LENGTH: "length"}

DONE = b"data: [DONE]\n\n"
"""Last event of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Writes the answer to one request.

    Args:
        identifier: The answer's id.
        created: Unix time in seconds.
        model: Name of the model.
        chat: Whether the answer is a chat's, instead of a completion's.
        logprobs: Whether the client wants log-probabilities.
        version: The version that answers.
        arithmetic: The engine's arithmetic.
        requests: The requests to the engine.
        parameters: Sampling parameters.
        with_proofs: Whether answers have proofs.
    """

    identifier: str
    created: int
    model: str
    chat: bool
    logprobs: bool
    version: ServedVersion
    arithmetic: Arithmetic
    requests: tuple[SampleRequest, ...]
    parameters: SamplingParameters
    with_proofs: bool

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """Returns the body of an answer that is not streamed."""
        choices = [self._choice(one) for one in completions]
        return encoded(
            self.envelope("chat.completion" if self.chat else "text_completion", choices)
            | {"usage": self.usage(completions), "muster": self.record(completions)}
        )

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns the fields that answers and chunks share."""
        return {
            "id": self.identifier,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"{self.arithmetic}@{self.version.digest[:18]}",
            "choices": choices,
        }

    def record(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Returns the field `muster`, from which the answer is verified."""
        return record_of(
            completions,
            requests=self.requests,
            parameters=self.parameters,
            arithmetic=self.arithmetic,
            with_proofs=self.with_proofs,
        ).model_dump(mode="json")

    def usage(self, completions: Sequence[Completion]) -> dict[str, int]:
        """Returns the numbers of tokens; each prompt counts once."""
        prompts = {id(one.prompt_tokens): len(one.prompt_tokens) for one in self.requests}
        read, written = sum(prompts.values()), sum(len(one.tokens) for one in completions)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def shown_logprobs(self, tokens: Sequence[int], logprobs: Sequence[float], *, offset: int = 0) -> dict[str, Any]:
        """Returns log-probabilities of drawn tokens; `offset` is the length of the text before them."""
        texts = [self.version.tokenizer.token_text(token) for token in tokens]
        if self.chat:
            return {
                "content": [
                    {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
                    for text, logprob in zip(texts, logprobs, strict=True)
                ],
                "refusal": None,
            }
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {"tokens": texts, "token_logprobs": list(logprobs), "top_logprobs": None, "text_offset": offsets}

    def _choice(self, one: Completion) -> dict[str, Any]:
        text = self.version.tokenizer.decode(one.tokens)
        content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        shown = self.shown_logprobs(one.tokens, one.logprobs.tolist()) if self.logprobs else None
        return {"index": one.sample, **content, "logprobs": shown, "finish_reason": _FINISH[one.finish]}


@dataclass(slots=True, kw_only=True)
class _StreamedChoice:
    """Progress of one choice of a stream."""

    text: TextStream
    length: int = 0


@dataclass(slots=True)
class StreamedReply:
    """Writes the answer to one request as server-sent events.

    The last chunk of a choice has its finish reason. The last chunk of the last choice also has the field `muster`.

    Args:
        reply: Writes the answer.
        with_usage: Whether the stream ends with the numbers of tokens.
        on_end: Called with all completions.
    """

    reply: Reply
    with_usage: bool = field(kw_only=True)
    on_end: Callable[[Sequence[Completion]], None] = field(kw_only=True)
    _choices: list[_StreamedChoice] = field(init=False)
    _completions: list[Completion] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._choices = [_StreamedChoice(text=self.reply.version.tokenizer.text_stream()) for _ in self.reply.requests]

    def start(self) -> bytes:
        """Returns the events before the first token."""
        if not self.reply.chat:
            return b""
        first = {"role": "assistant", "content": ""}
        return b"".join(
            self._event([{"index": index, "delta": first, "logprobs": None, "finish_reason": None}])
            for index in range(len(self._choices))
        )

    def events(self, news: Sequence[News]) -> bytes:
        """Returns the events of tokens and answers; tokens of one choice share an event."""
        return b"".join(self._events(news))

    def _events(self, news: Sequence[News]) -> Iterator[bytes]:
        drawn: dict[int, list[DrawnToken]] = {}
        for one in news:
            if isinstance(one, DrawnToken):
                drawn.setdefault(one.sample, []).append(one)
        for index, tokens in drawn.items():
            choice = self._choices[index]
            text = "".join(choice.text.add(one.token) for one in tokens)
            shown = None
            if self.reply.logprobs:
                shown = self.reply.shown_logprobs(
                    [one.token for one in tokens], [one.logprob for one in tokens], offset=choice.length
                )
            choice.length += len(text)
            if text or shown:
                yield self._event([self._choice(index, text, shown, None)])
        for one in news:
            if isinstance(one, Completion):
                yield from self._end(one)

    def _end(self, one: Completion) -> Iterator[bytes]:
        self._completions.append(one)
        choices = [self._choice(one.sample, self._choices[one.sample].text.end(), None, _FINISH[one.finish])]
        if len(self._completions) < len(self._choices):
            yield self._event(choices)
            return
        whole = sorted(self._completions, key=lambda each: each.sample)
        self.on_end(whole)
        yield self._event(choices, muster=self.reply.record(whole))
        if self.with_usage:
            yield self._event([], usage=self.reply.usage(whole))

    def _choice(self, index: int, text: str, shown: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.reply.chat:
            content = {"delta": {"content": text} if text else {}}
        return {"index": index, **content, "logprobs": shown, "finish_reason": finish}

    def _event(self, choices: list[dict[str, Any]], **more: object) -> bytes:
        kind = "chat.completion.chunk" if self.reply.chat else "text_completion"
        return event(self.reply.envelope(kind, choices) | more)


def generated(identifier: str, completions: Sequence[Completion], *, reply: Reply, logprobs: bool) -> bytes:
    """Returns the body of `POST /inference/v1/generate`.

    A token's log-probability has the fields of vLLM (`token_id`) and the form that renderers read (`token`).
    """
    choices = [
        {
            "index": one.sample,
            "finish_reason": _FINISH[one.finish],
            "stop_reason": None,
            "token_ids": list(one.tokens),
            "logprobs": None if not logprobs else {"content": [*_tokens(one)]},
        }
        for one in completions
    ]
    return encoded(
        {
            "request_id": identifier,
            "model": reply.model,
            "choices": choices,
            "usage": reply.usage(completions),
            "prompt_logprobs": None,
            "kv_transfer_params": None,
            "muster": reply.record(completions),
        }
    )


def _tokens(one: Completion) -> Iterator[dict[str, Any]]:
    for token, logprob in zip(one.tokens, one.logprobs.tolist(), strict=True):
        yield {"token": f"token_id:{token}", "token_id": token, "logprob": logprob, "top_logprobs": []}


def encoded(value: object) -> bytes:
    """Returns a value as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(value: object) -> bytes:
    """Returns a value as a server-sent event."""
    return b"data: " + encoded(value) + b"\n\n"
