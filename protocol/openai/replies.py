"""JSON of answers, whole and as chunks of a stream, from texts, tokens and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

DONE = b"data: [DONE]\n\n"
"""Last event of a stream."""

FINISH_REASONS = {"eos": "stop", "length": "length"}
"""OpenAI's names of the reasons why an answer ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeChoice:
    """One choice of an answer.

    Args:
        index: Number of the choice.
        text: The text, without end token.
        tokens: The tokens, including an end token.
        logprobs: Log-probability of each token.
        pieces: Text of each token alone; empty unless the client wants log-probabilities.
        finish: Why the answer ended, in OpenAI's words.
    """

    index: int
    text: str
    tokens: Sequence[int]
    logprobs: Sequence[float]
    pieces: Sequence[str]
    finish: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """Writes the answers to one request.

    Args:
        identifier: The answer's id.
        created: Unix time in seconds.
        model: Name of the model.
        chat: Whether the answer is a chat's, instead of a completion's.
        logprobs: Whether the client wants log-probabilities.
        fingerprint: Arithmetic and version.
    """

    identifier: str
    created: int
    model: str
    chat: bool
    logprobs: bool
    fingerprint: str

    def whole(self, choices: Sequence[WholeChoice], *, usage: dict[str, int], record: dict[str, Any]) -> bytes:
        """Returns the body of an answer that is not streamed."""
        kind = "chat.completion" if self.chat else "text_completion"
        return encoded(self.envelope(kind, [self.choice(one) for one in choices]) | {"usage": usage, "muster": record})

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns the fields that answers and chunks share."""
        return {
            "id": self.identifier,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def shown_logprobs(self, pieces: Sequence[str], logprobs: Sequence[float], *, offset: int = 0) -> dict[str, Any]:
        """Returns log-probabilities of drawn tokens.

        Args:
            pieces: Text of each token alone.
            logprobs: Log-probability of each token.
            offset: Length of the text before the tokens.
        """
        if self.chat:
            return {
                "content": [
                    {"token": text, "logprob": logprob, "bytes": _bytes_of(text), "top_logprobs": []}
                    for text, logprob in zip(pieces, logprobs, strict=True)
                ],
                "refusal": None,
            }
        offsets = []
        for text in pieces:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": list(pieces),
            "token_logprobs": list(logprobs),
            "top_logprobs": None,
            "text_offset": offsets,
        }

    def start(self, choices: int) -> bytes:
        """Returns the events of a stream before the first token."""
        if not self.chat:
            return b""
        first = {"role": "assistant", "content": ""}
        return b"".join(
            self.chunk([{"index": index, "delta": first, "logprobs": None, "finish_reason": None}])
            for index in range(choices)
        )

    def chunk(self, choices: list[dict[str, Any]], **more: object) -> bytes:
        """Returns an event of a stream."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return event(self.envelope(kind, choices) | more)

    def chunk_choice(self, index: int, text: str, shown: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        """Returns one choice of a chunk."""
        content: dict[str, Any] = {"text": text}
        if self.chat:
            content = {"delta": {"content": text} if text else {}}
        return {"index": index, **content, "logprobs": shown, "finish_reason": finish}

    def choice(self, one: WholeChoice) -> dict[str, Any]:
        """Returns one choice of an answer that is not streamed."""
        content: dict[str, Any] = {"text": one.text}
        if self.chat:
            content = {"message": {"role": "assistant", "content": one.text}}
        shown = self.shown_logprobs(one.pieces, one.logprobs) if self.logprobs else None
        return {"index": one.index, **content, "logprobs": shown, "finish_reason": one.finish}


def _bytes_of(text: str) -> list[int] | None:
    """Returns a token's bytes; None if they are not known, because the token is a part of a character."""
    return None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())


def usage_of(prompts: int, written: int) -> dict[str, int]:
    """Returns the numbers of tokens in all prompts and in all choices."""
    return {"prompt_tokens": prompts, "completion_tokens": written, "total_tokens": prompts + written}


def generated(
    identifier: str,
    choices: Sequence[WholeChoice],
    *,
    model: str,
    logprobs: bool,
    usage: dict[str, int],
    record: dict[str, Any],
) -> bytes:
    """Returns the body of `POST /inference/v1/generate`.

    A token's log-probability has the fields of vLLM (`token_id`) and the form that renderers read (`token`).
    """
    return encoded(
        {
            "request_id": identifier,
            "model": model,
            "choices": [generated_choice(one, logprobs=logprobs) for one in choices],
            "usage": usage,
            "prompt_logprobs": None,
            "kv_transfer_params": None,
            "muster": record,
        }
    )


def generated_choice(one: WholeChoice, *, logprobs: bool) -> dict[str, Any]:
    """Returns one choice of an answer of `POST /inference/v1/generate`."""
    return {
        "index": one.index,
        "finish_reason": one.finish,
        "stop_reason": None,
        "token_ids": list(one.tokens),
        "logprobs": None if not logprobs else {"content": _tokens(one)},
    }


def _tokens(one: WholeChoice) -> list[dict[str, Any]]:
    return [
        {"token": f"token_id:{token}", "token_id": token, "logprob": logprob, "top_logprobs": []}
        for token, logprob in zip(one.tokens, one.logprobs, strict=True)
    ]


def encoded(value: object) -> bytes:
    """Returns a value as compact JSON; this takes a fifth of the time of `json.dumps`."""
    return to_json(value)


def event(value: object) -> bytes:
    """Returns a value as a server-sent event."""
    return b"data: " + encoded(value) + b"\n\n"
