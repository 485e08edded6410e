"""Format of a chat: system prompt and options of the tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

MOST_SYSTEM_CHARACTERS = 32 * 1024
_MOST_OPTIONS = 16
_TAKEN = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "chat_template",
        "conversation",
        "continue_final_message",
        "documents",
        "eos_token",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "strftime_now",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that can't be options: transformers itself passes them to a template, or they change more than its output."""


def _check_names(options: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    for name in options:
        if not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"{name!r:.40} is not a valid option name")
        if name in _TAKEN:
            raise ValueError(f"{name} can't be an option of a template")
    return options


class ChatFormat(BaseModel):
    """Format that turns a prompt into a chat.

    Args:
        system: Text of the system turn before the prompt; empty for none.
        template: Options that the chat template reads, such as `{"enable_thinking": false}`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    system: Annotated[str, Field(max_length=MOST_SYSTEM_CHARACTERS)] = ""
    template: Annotated[dict[str, JsonValue], Field(max_length=_MOST_OPTIONS), AfterValidator(_check_names)] = {}
