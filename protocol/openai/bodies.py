"""Bodies of requests: what clients may ask for, and which options are refused.

The bodies are those of OpenAI's API, with options that vLLM added. An option that would change the answer and that
replay does not support is refused by name, unless it has its neutral value: an answer that silently ignores an option
would be wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    ValidationError,
    model_validator,
)

from protocol.errors import InvalidInput
from protocol.openai.errors import InvalidRequest
from protocol.runtime.randomness import token_bytes
from protocol.sampling import SamplingParameters
from protocol.wire.served import RequestKind

SEED_TAG = b"muster-serving-seed-v1"
"""Domain separation tag of seeds that clients give as a number."""

SEED_BYTES = 32
"""Length of a seed."""

MOST_TURNS = 4096
MOST_PARTS = 1024
"""Maximum number of parts of a message's content."""
MOST_FIELDS = 256
"""Maximum number of fields of an object with named fields."""

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

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_Int64 = Annotated[StrictInt, Field(ge=-(1 << 63), lt=1 << 63)]
_Token = Annotated[StrictInt, Field(ge=0, lt=1 << 31)]
_Tokens = Annotated[list[_Token], Field(min_length=1, max_length=1 << 20, fail_fast=True)]
"""Lists of strangers end at the first wrong value: pydantic would keep 2 KB for each of a million errors."""


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
            text = body.decode()
            values = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
            if _SURROGATE.search(text):
                json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                "body", "the body has half of a surrogate pair, such as \\ud800, which is no character"
            ) from None
        except (ValueError, RecursionError) as error:
            raise InvalidRequest("body", f"the body is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise InvalidRequest("body", "the body is not a JSON object")
        return cls.of(values, at="")

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, values: object) -> object:
        if isinstance(values, dict) and len(values) > MOST_FIELDS:
            raise ValueError(_too_many_fields(values))
        return values

    @classmethod
    def of(cls, values: Mapping[str, Any], *, at: str) -> Self:
        """Checks options; `at` is the path of the object in the body, for errors."""
        if len(values) > MOST_FIELDS:
            raise InvalidRequest(at or "body", _too_many_fields(values))
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
            what = (
                "this option is unknown"
                if first["type"] == "extra_forbidden"
                else first["msg"].removeprefix("Value error, ")
            )
            raise InvalidRequest(path, f"{path[:100]}: {what}") from None


def _too_many_fields(values: Mapping[Any, Any]) -> str:
    return f"an object has {len(values)} fields; the limit is {MOST_FIELDS}"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


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
    stop_token_ids: Annotated[list[_Token], Field(fail_fast=True)] | None = None

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

    def check_stop_tokens(self, end_tokens: Collection[int]) -> None:
        """Accepts end tokens of the model as stop tokens, because they end every answer.

        Raises:
            InvalidRequest: Another token is named.
        """
        others = sorted(set(self.stop_token_ids or ()) - set(end_tokens))
        if others:
            raise InvalidRequest(
                "stop_token_ids",
                f"token {others[0]} is no end token of the model; those are {sorted(end_tokens)}",
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

    @property
    def sampling(self) -> Sampling:
        """The sampling options."""
        return self

    def wants_usage(self) -> bool | None:
        """Returns whether the stream ends with the numbers of tokens; None if the answer is not streamed.

        Raises:
            InvalidRequest: The body has options of a stream, but asks for none.
        """
        if not self.stream:
            if self.stream_options is not None:
                raise InvalidRequest("stream_options", "stream_options needs stream=true")
            return None
        return bool(self.stream_options and self.stream_options.include_usage)


def _prompt_form(value: object) -> str:
    """Returns the tag of a prompt's form, by its first element."""
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else 0
    return "texts" if isinstance(first, str) else "lists" if isinstance(first, list) else "tokens"


_Prompts = Field(min_length=1, max_length=4096, fail_fast=True)


class CompletionBody(OpenAiBody):
    """Body of `POST /v1/completions`."""

    prompt: Annotated[
        Annotated[StrictStr, Tag("text")]
        | Annotated[_Tokens, Tag("tokens")]
        | Annotated[list[StrictStr], _Prompts, Tag("texts")]
        | Annotated[list[_Tokens], _Prompts, Tag("lists")],
        Discriminator(_prompt_form),
    ]
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: Annotated[StrictInt, Field(ge=0)] | None = None

    @property
    def new_tokens(self) -> int:
        """Maximum number of new tokens; OpenAI's default is 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts, as texts or token ids."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt

    @property
    def choices(self) -> int:
        """Number of answers."""
        return len(self.prompts) * (self.n or 1)

    def wants_logprobs(self) -> bool:
        """Returns whether the client wants log-probabilities.

        Raises:
            InvalidRequest: The client wants those of other tokens, too.
        """
        if self.logprobs:
            raise InvalidRequest(
                "logprobs",
                f"logprobs is {self.logprobs}, but only the log-probability of the drawn token is known",
                hint="set logprobs to 0",
                code="unsupported-option",
            )
        return self.logprobs is not None


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
    content: StrictStr | Annotated[list[TextPart], Field(max_length=MOST_PARTS, fail_fast=True)] | None = None
    name: StrictStr | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
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

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_TURNS, fail_fast=True)]
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: StrictBool | None = None
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    add_generation_prompt: Literal[True] | None = None

    @property
    def new_tokens(self) -> int | None:
        """Maximum number of new tokens; None for all that fit the model's context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def choices(self) -> int:
        """Number of answers."""
        return self.n or 1

    def wants_logprobs(self) -> bool:
        """Returns whether the client wants log-probabilities."""
        return bool(self.logprobs)


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

    @property
    def choices(self) -> int:
        """Number of answers."""
        return self.sampling_params.n or 1

    def wants_logprobs(self) -> bool:
        """Returns whether the client wants log-probabilities."""
        return self.sampling_params.logprobs is not None

    @classmethod
    def of(cls, values: Mapping[str, Any], *, at: str) -> Self:
        """Checks the inner options first, so that errors name them."""
        inner = values.get("sampling_params")
        if isinstance(inner, dict):
            values = {**values, "sampling_params": GenerateSampling.of(inner, at="sampling_params.")}
        return super().of(values, at=at)


ClientBody = CompletionBody | ChatBody | GenerateBody
"""Body of a request for answers."""

_BODIES: Mapping[RequestKind, type[ClientBody]] = {
    RequestKind.COMPLETION: CompletionBody,
    RequestKind.CHAT: ChatBody,
    RequestKind.GENERATE: GenerateBody,
}


def parse_body(kind: RequestKind, content: bytes) -> ClientBody:
    """Parses the body of a request to one of the three routes, and checks its sampling options.

    Raises:
        InvalidRequest: The kind is unknown, the body is not valid, or it has an option that is not supported.
    """
    if kind not in _BODIES:
        raise InvalidRequest("kind", f"this release does not know requests of the kind {kind}")
    body = _BODIES[kind].parse(content)
    body.sampling.parameters(1 if body.new_tokens is None else body.new_tokens)
    return body
