"""Encodes the bodies of requests with a version's tokenizer, and checks them against the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydantic import ValidationError

from protocol.openai.bodies import ChatBody, ClientBody, GenerateBody
from protocol.openai.errors import InvalidRequest
from rollouts.engines.interface import SampleRequest
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat
from rollouts.models.facts import ModelFacts
from rollouts.models.tokenizer import FolderTokenizer


class ModelFolder(Protocol):
    """The parts of a version that encode a request."""

    @property
    def model(self) -> ModelFacts:
        """Facts of the model."""

    @property
    def tokenizer(self) -> FolderTokenizer:
        """The model's tokenizer."""


def encode(body: ClientBody, version: ModelFolder) -> list[list[int]]:
    """Returns the token ids of a request's prompts.

    Raises:
        InvalidRequest: The tokenizer can't encode a prompt, or the model has no chat template or refuses these turns.
    """
    if isinstance(body, GenerateBody):
        return [body.token_ids]
    if isinstance(body, ChatBody):
        return [_encode_chat(body, version)]
    try:
        return [version.tokenizer.encode(one) if isinstance(one, str) else one for one in body.prompts]
    except BadVersionFolder as error:
        raise InvalidRequest("prompt", error.detail) from None


def _encode_chat(body: ChatBody, version: ModelFolder) -> list[int]:
    if not version.tokenizer.has_chat_template:
        raise InvalidRequest(
            "messages",
            "the model has no chat template",
            hint="use /v1/completions, or serve a folder with a chat template",
            code="no-chat-template",
        )
    try:
        options = ChatFormat(template=body.chat_template_kwargs or {}).template
    except ValidationError as error:
        raise InvalidRequest("chat_template_kwargs", error.errors()[0]["msg"]) from None
    try:
        tools = [] if body.tool_choice == "none" else [tool.model_dump() for tool in body.tools or ()]
        turns = [message.turn() for message in body.messages]
        return version.tokenizer.encode_turns(turns, tools=tools, options=options)
    except BadVersionFolder as error:
        raise InvalidRequest("messages", error.detail, hint="check roles and order of the messages") from None
    except (RecursionError, ValueError):  # pydantic raises ValueError for values that are nested too deeply
        raise InvalidRequest("tools", "messages or tools are nested too deeply") from None


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
