"""State of one dialogue in tokens, by the same rules for the playing node and the verifiers.

A dialogue is over after a message
- that the model did not end itself, because the turn had no room for further tokens;
- after which the environment says so, or replies nothing;
- that is the last one of the allowed turns;
- whose reply has at least as many tokens as the model may still draw, by the context or by the limit of new tokens.
All these limits are counted in turns and tokens, so every machine gets the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollouts.dialogue.formats import DialogueFormat
from rollouts.engines.interface import FinishReason
from rollouts.environments.dialogue import Episode, GivenMessage, Reply
from rollouts.environments.interface import Score
from rollouts.errors import BadVersionFolder
from rollouts.turns import Turn

TOO_LONG = "error: the reply is too long"
"""Text of each message of a reply with more tokens than the recipe allows."""
NOT_ENCODABLE = "error: the reply can't be shown"
"""Text of each message of a reply that the version's tokenizer or template can't encode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueLimits:
    """Limits of a dialogue.

    Args:
        turns: Maximum number of messages of the model.
        new_tokens: Maximum number of drawn tokens of all turns together.
        reply_tokens: Maximum number of tokens given between two turns.
        context: Maximum number of tokens of prompt and dialogue.
    """

    turns: int
    new_tokens: int
    reply_tokens: int
    context: int


Encoded = tuple[Sequence[GivenMessage], Sequence[int]]
"""Messages with their tokens."""


def messages_to_give(
    reply: Reply,
    *,
    finished: bool,
    is_last_turn: bool,
    room: int,
    reply_tokens: int,
    encode: Callable[[Sequence[GivenMessage]], Sequence[int]],
) -> Encoded:
    """Returns the messages that the model reads before its next one; none if the dialogue is over.

    A reply that is too long, or that can't be encoded, becomes an error text: the model's messages influence replies,
    so neither may be an error of the machine.

    Args:
        reply: The environment's reply.
        finished: Whether the model ended its message itself.
        is_last_turn: Whether the message was the last one of the allowed turns.
        room: Maximum number of tokens that the model may still draw.
        reply_tokens: Maximum number of tokens of a reply.
        encode: Returns the tokens of messages; may raise `BadVersionFolder`.
    """
    if not finished or reply.done or not reply.messages or is_last_turn:
        return (), ()
    messages, error = reply.messages, ""
    tokens: Sequence[int] = ()
    try:
        tokens = encode(messages)
        if len(tokens) > reply_tokens:
            error = TOO_LONG
    except BadVersionFolder:
        error = NOT_ENCODABLE
    if error:
        messages = [replace(message, text=error) for message in messages]
        try:
            tokens = encode(messages)
        except BadVersionFolder:
            return (), ()
    return (messages, tokens) if len(tokens) <= min(reply_tokens, room - 1) else ((), ())


class Conversation:
    """One dialogue.

    Args:
        episode: The environment's side, at its beginning.
        prompt_tokens: The prompt's tokens.
        dialogue_format: Encodes replies and reads messages.
        limits: Limits of the dialogue.
        end_tokens: Tokens that end a message of the model.
    """

    def __init__(
        self,
        episode: Episode,
        *,
        prompt_tokens: Sequence[int],
        dialogue_format: DialogueFormat,
        limits: DialogueLimits,
        end_tokens: Collection[int],
    ) -> None:
        self._episode = episode
        self._format = dialogue_format
        self._limits = limits
        self._end_tokens = end_tokens
        self.prompt_tokens = tuple(prompt_tokens)
        self.tokens: list[int] = []
        """All tokens after the prompt."""
        self.drawn: list[int] = []
        """The drawn tokens."""
        self.turns: list[Turn] = []
        self.over = False
        self.limited = False
        """Whether a limit of time or memory ended the dialogue, so that another machine may get another end."""

    @property
    def room(self) -> int:
        """Maximum number of tokens of the next turn; 0 if the dialogue is over."""
        if self.over:
            return 0
        limits = self._limits
        used = len(self.prompt_tokens) + len(self.tokens)
        return max(0, min(limits.new_tokens - len(self.drawn), limits.context - used))

    @property
    def finish(self) -> FinishReason:
        """Reason why the last message ended."""
        ended = bool(self.drawn) and self.drawn[-1] in self._end_tokens
        return FinishReason.EOS if ended else FinishReason.LENGTH

    def add(self, drawn: Sequence[int]) -> None:
        """Adds the tokens that the model drew in a turn, and the environment's reply.

        Args:
            drawn: 1 to `room` tokens. An end token can only be the last one. A turn without an end token fills the
                room.

        Raises:
            ValueError: The tokens are not those of a turn.
            EnvironmentFault: The environment breaks its contract.
        """
        fault = self.fault_of(drawn)
        if fault:
            raise ValueError(fault)
        finished = drawn[-1] in self._end_tokens
        self.tokens += drawn
        self.drawn += drawn
        text = drawn[:-1] if finished else drawn
        reply = self._episode.reply(self._format.read(text, self._episode.tools, finished=finished))
        _, given = messages_to_give(
            reply,
            finished=finished,
            is_last_turn=len(self.turns) + 1 >= self._limits.turns,
            room=self.room,
            reply_tokens=self._limits.reply_tokens,
            encode=self._format.give,
        )
        self.limited = reply.limited
        self.over = not given
        self.tokens += given
        self.turns.append(Turn(len(drawn), np.array(given, np.int32)))

    def fault_of(self, drawn: Sequence[int]) -> str:
        """Returns why these tokens can't be the next turn; empty if they can."""
        if self.over:
            return "the dialogue is over"
        ends = [place for place, token in enumerate(drawn) if token in self._end_tokens]
        if not 1 <= len(drawn) <= self.room:
            return f"a turn has {len(drawn)} tokens; 1 to {self.room} are allowed here"
        if ends and ends[0] < len(drawn) - 1:
            return f"{len(drawn) - 1 - ends[0]} tokens follow the end token"
        if not ends and len(drawn) < self.room:
            return f"a turn stops after {len(drawn)} tokens without an end token; its limit is {self.room}"
        return ""

    def demonstrated(self, text: str) -> str:
        """Returns a text of `DialogueEnvironment.demonstration_turns` as the model writes it in this format."""
        return self._format.demonstrated(text, self._episode.tools)

    def score(self) -> Score:
        """Returns the environment's score of the dialogue."""
        return self._episode.score()
