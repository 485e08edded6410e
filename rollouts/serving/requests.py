"""Encodes the bodies of requests with a version's tokenizer, and checks them against the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from pydantic import ValidationError

from protocol.openai import bodies
from protocol.openai.bodies import SEED_TAG, Body, Sampling
from protocol.openai.errors import InvalidRequest
from protocol.wire.answers import AnswerRecord
from rollouts.engines.interface import SampleRequest
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat
from rollouts.models.facts import ModelFacts
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.serving.record import recorded_sampling

__all__ = ["SEED_TAG", "Body", "ChatBody", "CompletionBody", "GenerateBody", "Sampling"]


class ModelFolder(Protocol):
    """The parts of a version that encode a request."""

    @property
    def model(self) -> ModelFacts:
        """Facts of the model."""

    @property
    def tokenizer(self) -> FolderTokenizer:
        """The model's tokenizer."""


class CompletionBody(bodies.CompletionBody):
    """Body of `POST /v1/completions`."""

    def encode(self, version: ModelFolder) -> list[list[int]]:
        """Returns the token ids of the prompts.

        Raises:
            InvalidRequest: The tokenizer can't encode a prompt.
        """
        try:
            return [version.tokenizer.encode(one) if isinstance(one, str) else one for one in self.prompts]
        except BadVersionFolder as error:
            raise InvalidRequest("prompt", error.detail) from None


class ChatBody(bodies.ChatBody):
    """Body of `POST /v1/chat/completions`."""

    def encode(self, version: ModelFolder) -> list[list[int]]:
        """Returns the token ids of the chat, which is one prompt.

        Raises:
            InvalidRequest: The model has no chat template, or it refuses these turns.
        """
        if not version.tokenizer.has_chat_template:
            raise InvalidRequest(
                "messages",
                "the model has no chat template",
                hint="use /v1/completions, or serve a folder with a chat template",
                code="no-chat-template",
            )
        try:
            options = ChatFormat(template=self.chat_template_kwargs or {}).template
        except ValidationError as error:
            raise InvalidRequest("chat_template_kwargs", error.errors()[0]["msg"]) from None
        try:
            tools = [] if self.tool_choice == "none" else [tool.model_dump() for tool in self.tools or ()]
            turns = [message.turn() for message in self.messages]
            return [version.tokenizer.encode_turns(turns, tools=tools, options=options)]
        except BadVersionFolder as error:
            raise InvalidRequest("messages", error.detail, hint="check roles and order of the messages") from None
        except (RecursionError, ValueError):  # pydantic raises ValueError for values that are nested too deeply
            raise InvalidRequest("tools", "messages or tools are nested too deeply") from None


class GenerateBody(bodies.GenerateBody):
    """Body of `POST /inference/v1/generate`: tokens in, tokens out."""

    def encode(self, _version: ModelFolder) -> list[list[int]]:
        """Returns the token ids, which are one prompt."""
        return [self.token_ids]


def request_differences(
    content: bytes, record: AnswerRecord, version: ModelFolder, *, most_new_tokens: int | None = None
) -> list[str]:
    """Compares an answer with the request that the client sent; returns what the request did not ask for.

    Args:
        content: The request's body.
        record: The answer's field `muster`.
        version: The answer's version.
        most_new_tokens: Maximum number of new tokens if the request names none, besides the room in the model's
            context; None for an answer without such a limit.

    Raises:
        InvalidRequest: The service would have refused the request.
    """
    try:
        given = json.loads(content)
    except (ValueError, RecursionError):
        given = None  # `parse` describes the error
    keys = given if isinstance(given, dict) else {}
    kind = ChatBody if "messages" in keys else GenerateBody if "token_ids" in keys else CompletionBody
    body = kind.parse(content)
    prompts = body.encode(version)
    each = body.sampling.n or 1
    new_tokens = body.new_tokens
    if new_tokens is None:
        new_tokens = min(room(prompts, version), most_new_tokens or version.model.context)
    wanted = body.sampling.parameters(new_tokens)
    found = []
    if prompts != record.prompts:
        found.append("the prompts are not those of the request")
    if [one.prompt for one in record.samples] != [place for place in range(len(prompts)) for _ in range(each)]:
        found.append(f"the answer has {len(record.samples)} choices, but the request asks for {len(prompts) * each}")
    if recorded_sampling(wanted) != record.sampling:
        found.append("the sampling parameters are not those of the request")
    if body.sampling.seed is not None and body.sampling.seed_bytes() != record.seed_bytes:
        found.append("the seed is not that of the request")
    return found


def sample_requests(
    prompts: Sequence[Sequence[int]], *, each: int, seed: bytes, version: ModelFolder, new_tokens: int, param: str
) -> tuple[SampleRequest, ...]:
    """Returns the requests for several answers to each prompt.

    Args:
        prompts: Token ids of the prompts.
        each: Number of answers to each prompt.
        seed: The request's seed.
        version: The version that answers.
        new_tokens: Maximum number of new tokens.
        param: Name of the field with the prompts, for errors.

    Raises:
        InvalidRequest: A prompt is empty, too long, or has an unknown token.
    """
    context, vocabulary = version.model.context, version.model.vocabulary
    for tokens in prompts:
        if not tokens:
            raise InvalidRequest(param, "the prompt has no tokens", hint="give at least one character")
        if len(tokens) + new_tokens > context:
            raise InvalidRequest(
                param,
                f"the model's context is {context} tokens, but the request needs {len(tokens) + new_tokens}: "
                f"{len(tokens)} in the prompt and {new_tokens} for the answer",
                hint="shorten the prompt, or ask for fewer tokens",
                code="context-length-exceeded",
            )
        if max(tokens) >= vocabulary:
            raise InvalidRequest(param, f"token {max(tokens)} is outside the vocabulary of {vocabulary}")
    tuples = [tuple(tokens) for tokens in prompts]
    return tuple(
        SampleRequest(sample=place * each + number, prompt_tokens=tokens, seed=seed)
        for place, tokens in enumerate(tuples)
        for number in range(each)
    )


def room(prompts: Sequence[Sequence[int]], version: ModelFolder) -> int:
    """Returns the number of new tokens that fit the model's context after the longest prompt, at least 1."""
    return max(1, version.model.context - max((len(tokens) for tokens in prompts), default=0))
