"""Bodies of requests: what clients may ask for, and which options are refused.

The bodies are those of OpenAI's API, with options that vLLM added. An option that would change the answer and that
replay does not support is refused by name, unless it has its neutral value: an answer that silently ignores an option
would be wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, StrictInt, StrictStr, ValidationError

from protocol.errors import InvalidInput
from protocol.runtime.randomness import token_bytes
from protocol.wire.answers import AnswerRecord
from rollouts.engines.interface import SEED_BYTES, SampleRequest
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat
from rollouts.models.facts import ModelFacts
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.sampling.parameters import SamplingParameters
from rollouts.serving.errors import InvalidRequest
from rollouts.serving.record import recorded_sampling

SEED_TAG = b"muster-serving-seed-v1"
"""Domain separation tag of seeds that clients give as a number."""

MOST_TURNS = 4096
_SHORT = 4096
"""Length of a text in characters up to which it is encoded in the event loop's thread, in less than a millisecond."""

_EXACT = "an answer with this option could not be verified by replay"
_ABSENT = "Muster's engines do not have it"
_REFUSED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "audio": ((None,), _ABSENT),
    "allowed_token_ids": ((None, []), _EXACT),
    "bad_words": ((None, []), _EXACT),
    "best_of": ((None, 1), "an answer selected from several is no draw of the model"),
    "continue_final_message": ((None, False), _ABSENT),
    "echo": ((None, False), "the service returns no log-probabilities of prompts"),
    "frequency_penalty": ((None, 0), _EXACT),
    "function_call": ((None, "none"), "use `tools` and read the call in the answer's text"),
    "functions": ((None, []), "use `tools`"),
    "guided_choice": ((None,), _EXACT),
    "guided_grammar": ((None,), _EXACT),
    "guided_json": ((None,), _EXACT),
    "guided_regex": ((None,), _EXACT),
    "ignore_eos": ((None, False), "an answer ends with the model's end token"),
    "length_penalty": ((None, 1), _ABSENT),
    "logit_bias": ((None, {}), _EXACT),
    "logits_processors": ((None, []), _EXACT),
    "min_p": ((None, 0), _EXACT),
    "min_tokens": ((None, 0), _EXACT),
    "modalities": ((None, ["text"]), "the service generates text only"),
    "prediction": ((None,), _ABSENT),
    "presence_penalty": ((None, 0), _EXACT),
    "prompt_logprobs": ((None,), "the service returns no log-probabilities of prompts"),
    "repetition_penalty": ((None, 1), _EXACT),
    "response_format": ((None, {"type": "text"}), _EXACT),
    "stop": ((None, [], ""), "cut the text at the client; the proofs cover the whole answer"),
    "structured_outputs": ((None,), _EXACT),
    "suffix": ((None, ""), _ABSENT),
    "top_logprobs": ((None, 0), "only the log-probability of the drawn token is known"),
    "truncate_prompt_tokens": ((None,), "shorten the prompt at the client"),
    "use_beam_search": ((None, False), _EXACT),
}
"""Options that are refused unless they have one of these neutral values, with the reason."""
_IGNORED = frozenset(
    {
        "cache_salt",
        "detokenize",
        "include_stop_str_in_output",
        "metadata",
        "parallel_tool_calls",
        "priority",
        "prompt_cache_key",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "routed_experts_prompt_start",
        "safety_identifier",
        "service_tier",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "store",
        "user",
    }
)
"""Options that do not change the tokens of an answer, or concern features that Muster's answers lack."""

_Int64 = Annotated[StrictInt, Field(ge=-(1 << 63), lt=1 << 63)]
_Token = Annotated[StrictInt, Field(ge=0, lt=1 << 31)]
_Tokens = Annotated[list[_Token], Field(min_length=1, max_length=1 << 20)]


class ModelFolder(Protocol):
    """The parts of a version that encode a request."""

    @property
    def model(self) -> ModelFacts:
        """Facts of the model."""

    @property
    def tokenizer(self) -> FolderTokenizer:
        """The model's tokenizer."""


class Body(BaseModel):
    """A JSON object in a request; see the module's docstring for options that are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Parses a request's body.

        Raises:
            InvalidRequest: It is not JSON, a field is unknown or has a wrong value, or an option is not supported.
        """
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest("body", f"the body is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise InvalidRequest("body", "the body is not a JSON object")
        return cls.of(values, at="")

    @classmethod
    def of(cls, values: Mapping[str, Any], *, at: str) -> Self:
        """Checks options; `at` is the path of the object in the body, for errors."""
        given = {
            name: value for name, value in values.items() if name in cls.model_fields or not _is_neutral(name, value)
        }
        for name in given:
            if name not in cls.model_fields and name in _REFUSED:
                raise InvalidRequest(
                    f"{at}{name}",
                    f"the option {name} is not supported: {_REFUSED[name][1]}",
                    hint=f"leave {name} out",
                    code="unsupported-option",
                )
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            path = at + ".".join(str(part) for part in first["loc"])
            what = "this option is unknown" if first["type"] == "extra_forbidden" else first["msg"]
            raise InvalidRequest(path, f"{path[:100]}: {what}") from None


def _is_neutral(name: str, value: object) -> bool:
    if name in _IGNORED:
        return True
    neutral = _REFUSED.get(name, ((),))[0]
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


class Sampling(Body):
    """Options that decide which tokens are drawn."""

    temperature: Annotated[float, Field(strict=True)] | None = None
    top_p: Annotated[float, Field(strict=True)] | None = None
    top_k: StrictInt | None = None
    seed: _Int64 | None = None
    n: Annotated[StrictInt, Field(ge=1)] | None = None
    stop_token_ids: list[_Token] | None = None

    def parameters(self, new_tokens: int) -> SamplingParameters:
        """Returns the sampling parameters; a temperature of 0 means the most probable tokens.

        Raises:
            InvalidRequest: A value is out of range.
        """
        temperature = 1.0 if self.temperature is None else self.temperature
        top_k = 0 if self.top_k is None or self.top_k == -1 else self.top_k
        if temperature == 0:
            temperature, top_k = 1.0, 1
        try:
            return SamplingParameters(
                max_new_tokens=new_tokens,
                temperature=temperature,
                top_p=1.0 if self.top_p is None else self.top_p,
                top_k=top_k,
            )
        except InvalidInput as error:
            raise InvalidRequest(error.detail.split(" ", 1)[0], error.detail, hint=error.hint) from None

    def check_stop_tokens(self, version: ModelFolder) -> None:
        """Accepts end tokens of the model as stop tokens, because they end every answer.

        Raises:
            InvalidRequest: Another token is named.
        """
        others = sorted(set(self.stop_token_ids or ()) - version.model.end_tokens)
        if others:
            raise InvalidRequest(
                "stop_token_ids",
                f"token {others[0]} is no end token of the model; those are {sorted(version.model.end_tokens)}",
                hint="leave the option out, or add the token to the folder's generation_config.json",
                code="unsupported-option",
            )

    def seed_bytes(self) -> bytes:
        """Returns the request's seed: 32 random bytes, or SHA-256 of `SEED_TAG` and the client's number.

        The number is encoded in 8 bytes, big-endian, as two's complement.
        """
        if self.seed is None:
            return token_bytes(SEED_BYTES)
        return hashlib.sha256(SEED_TAG + self.seed.to_bytes(8, "big", signed=True)).digest()


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: StrictBool | None = None
    continuous_usage_stats: Literal[False] | None = None
    include_obfuscation: StrictBool | None = None


class OpenAiBody(Sampling):
    """Options of both OpenAI routes."""

    model: StrictStr
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None


class CompletionBody(OpenAiBody):
    """Body of `POST /v1/completions`."""

    prompt: StrictStr | _Tokens | Annotated[list[StrictStr] | list[_Tokens], Field(min_length=1, max_length=4096)]
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: Annotated[StrictInt, Field(ge=0)] | None = None

    @property
    def sampling(self) -> Sampling:
        """The sampling options."""
        return self

    @property
    def new_tokens(self) -> int:
        """Maximum number of new tokens; OpenAI's default is 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    def encode(self, version: ModelFolder) -> list[list[int]]:
        """Returns the token ids of the prompts.

        Raises:
            InvalidRequest: The tokenizer can't encode a prompt.
        """
        try:
            return [version.tokenizer.encode(one) if isinstance(one, str) else one for one in self.prompts]
        except BadVersionFolder as error:
            raise InvalidRequest("prompt", error.detail) from None

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts, as texts or token ids."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: StrictStr


class FunctionCall(Body):
    """A call in an earlier answer."""

    name: StrictStr
    arguments: StrictStr


class ToolCall(Body):
    """A tool call in an earlier answer."""

    id: StrictStr | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: StrictInt | None = None

    def turn(self) -> dict[str, JsonValue]:
        """Returns the call as templates read it: the arguments are an object, if they are one."""
        arguments: JsonValue = self.function.arguments
        try:
            parsed = json.loads(self.function.arguments)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            arguments = parsed
        call: dict[str, JsonValue] = {
            "type": self.type,
            "function": {"name": self.function.name, "arguments": arguments},
        }
        return call if self.id is None else {"id": self.id, **call}


class Message(Body):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | list[TextPart] | None = None
    name: StrictStr | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: StrictStr | None = None
    reasoning_content: StrictStr | None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None

    def turn(self) -> dict[str, JsonValue]:
        """Returns the turn as the chat template reads it."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        turn: dict[str, JsonValue] = {"role": self.role, "content": content or ""}
        for field in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, field)) is not None:
                turn[field] = value
        if self.tool_calls:
            turn["tool_calls"] = [call.turn() for call in self.tool_calls]
        return turn


class Tool(Body):
    """A tool that the template describes to the model."""

    type: Literal["function"]
    function: dict[str, JsonValue]


class ChatBody(OpenAiBody):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_TURNS)]
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: StrictBool | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    add_generation_prompt: Literal[True] | None = None

    @property
    def sampling(self) -> Sampling:
        """The sampling options."""
        return self

    @property
    def new_tokens(self) -> int | None:
        """Maximum number of new tokens; None for all that fit the model's context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

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

    @property
    def is_short(self) -> bool:
        """Whether the chat can be encoded in the event loop's thread."""
        size = sum(len(message.content or "") for message in self.messages)
        return not self.tools and len(self.messages) < 16 and size < _SHORT


class GenerateSampling(Sampling):
    """The field `sampling_params` of `POST /inference/v1/generate`."""

    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: Annotated[StrictInt, Field(ge=0, le=1)] | None = None
    """vLLM's 0 and 1 both include the drawn token."""


class GenerateBody(Body):
    """Body of `POST /inference/v1/generate`: tokens in, tokens out."""

    model: StrictStr | None = None
    request_id: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None
    token_ids: _Tokens
    sampling_params: GenerateSampling
    stream: Literal[False] | None = None
    features: None = None
    content_parts: None = None

    @property
    def sampling(self) -> Sampling:
        """The sampling options."""
        return self.sampling_params

    @property
    def new_tokens(self) -> int | None:
        """Maximum number of new tokens; None for all that fit the model's context."""
        return self.sampling_params.max_tokens

    def encode(self, _version: ModelFolder) -> list[list[int]]:
        """Returns the token ids, which are one prompt."""
        return [self.token_ids]

    @classmethod
    def of(cls, values: Mapping[str, Any], *, at: str) -> Self:
        """Checks the inner options first, so that errors name them."""
        inner = values.get("sampling_params")
        if isinstance(inner, dict):
            values = {**values, "sampling_params": GenerateSampling.of(inner, at="sampling_params.")}
        return super().of(values, at=at)


def request_differences(content: bytes, record: AnswerRecord, version: ModelFolder) -> list[str]:
    """Compares an answer with the request that the client sent; returns what the request did not ask for.

    Args:
        content: The request's body.
        record: The answer's field `muster`.
        version: The answer's version.

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
    wanted = body.sampling.parameters(room(prompts, version) if body.new_tokens is None else body.new_tokens)
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


def is_short(prompts: Sequence[str | list[int]]) -> bool:
    """Returns whether prompts can be encoded in the event loop's thread."""
    return sum(len(prompt) for prompt in prompts if isinstance(prompt, str)) < _SHORT
