"""Bodies of answers from an engine's completions: whole, and as chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.openai.replies import FINISH_REASONS, ReplyFormat, WholeChoice, generated, usage_of
from rollouts.engines.interface import Completion, DrawnToken, SampleRequest
from rollouts.models.tokenizer import FolderTokenizer, TextStream
from rollouts.precision import Arithmetic
from rollouts.sampling.parameters import SamplingParameters
from rollouts.serving.generation import News
from rollouts.serving.record import record_of
from rollouts.serving.version import ServedVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Writes the answer to one request.

    Args:
        form: Writes the JSON.
        version: The version that answers.
        arithmetic: The engine's arithmetic.
        requests: The requests to the engine.
        parameters: Sampling parameters.
        with_proofs: Whether answers have proofs.
    """

    form: ReplyFormat
    version: ServedVersion
    arithmetic: Arithmetic
    requests: tuple[SampleRequest, ...]
    parameters: SamplingParameters
    with_proofs: bool

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """Returns the body of an answer that is not streamed."""
        choices = [self._choice(one) for one in completions]
        return self.form.whole(choices, usage=self.usage(completions), record=self.record(completions))

    def generated(self, identifier: str, completions: Sequence[Completion], *, logprobs: bool) -> bytes:
        """Returns the body of `POST /inference/v1/generate`."""
        return generated(
            identifier,
            [self._choice(one, with_text=False) for one in completions],
            model=self.form.model,
            logprobs=logprobs,
            usage=self.usage(completions),
            record=self.record(completions),
        )

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
        return usage_of(sum(prompts.values()), sum(len(one.tokens) for one in completions))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Returns the text of each token alone; none if the client wants no log-probabilities."""
        return [self.version.tokenizer.token_text(token) for token in tokens] if self.form.logprobs else []

    def _choice(self, one: Completion, *, with_text: bool = True) -> WholeChoice:
        tokenizer = self.version.tokenizer if with_text else None
        return whole_choice(one, tokenizer, with_pieces=self.form.logprobs)


def whole_choice(one: Completion, tokenizer: FolderTokenizer | None, *, with_pieces: bool) -> WholeChoice:
    """Returns a choice for its JSON.

    Args:
        one: The completion.
        tokenizer: The version's tokenizer; None for a choice without text.
        with_pieces: Whether the choice has the text of each token alone.
    """
    return WholeChoice(
        index=one.sample,
        text="" if tokenizer is None else tokenizer.streamed_text(one.tokens),
        tokens=one.tokens,
        logprobs=one.logprobs.tolist(),
        pieces=() if tokenizer is None or not with_pieces else [tokenizer.token_text(each) for each in one.tokens],
        finish=FINISH_REASONS[one.finish.value],
    )


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
        return self.reply.form.start(len(self._choices))

    def events(self, news: Sequence[News]) -> bytes:
        """Returns the events of tokens and answers; tokens of one choice share an event."""
        return b"".join(self._events(news))

    def _events(self, news: Sequence[News]) -> Iterator[bytes]:
        form = self.reply.form
        drawn: dict[int, list[DrawnToken]] = {}
        for one in news:
            if isinstance(one, DrawnToken):
                drawn.setdefault(one.sample, []).append(one)
        for index, tokens in drawn.items():
            choice = self._choices[index]
            text = "".join(choice.text.add(one.token) for one in tokens)
            shown = None
            if form.logprobs:
                pieces = self.reply.pieces([one.token for one in tokens])
                shown = form.shown_logprobs(pieces, [one.logprob for one in tokens], offset=choice.length)
            choice.length += len(text)
            if text or shown:
                yield form.chunk([form.chunk_choice(index, text, shown, None)])
        for one in news:
            if isinstance(one, Completion):
                yield from self._end(one)

    def _end(self, one: Completion) -> Iterator[bytes]:
        form = self.reply.form
        self._completions.append(one)
        text = self._choices[one.sample].text.end()
        choices = [form.chunk_choice(one.sample, text, None, FINISH_REASONS[one.finish.value])]
        if len(self._completions) < len(self._choices):
            yield form.chunk(choices)
            return
        whole = sorted(self._completions, key=lambda each: each.sample)
        self.on_end(whole)
        yield form.chunk(choices, muster=self.reply.record(whole))
        if self.with_usage:
            yield form.chunk([], usage=self.reply.usage(whole))
