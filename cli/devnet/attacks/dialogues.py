"""Attacks on dialogues: forged replies, other ends, other histories, and other draws of single turns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.toolkit import AttackToolkit, DialogueChange, DrawTurns
from protocol.wire.slots import SlotGrant
from rollouts.dialogue.formats import DialogueFormat
from rollouts.engines.interface import Completion, EarlierTurns, SampleRequest
from rollouts.environments.dialogue import Episode, GivenMessage, ModelMessage, Reply, Role, Tool, ToolCall
from rollouts.environments.interface import Prompt, Score
from rollouts.files.samples import RolloutFile, Sample
from rollouts.sampling.parameters import SamplingParameters
from rollouts.turns import Turn

_TRIES = 4
"""Samples of each turn in `BestTurn`."""
_FURTHER = "?"
"""Reply that `LateEnd` and `ExtraTurn` invent after the end of a dialogue."""


class Staged(Trick):
    """Plays dialogues with another environment, format or limits than the version's.

    All turns are drawn, proved and measured honestly, in the context of the changed replies.

    Args:
        change: Returns the change for a version.
    """

    def __init__(self, change: Callable[[AttackToolkit], DialogueChange]) -> None:
        self._change = change

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the file of the changed dialogues."""
        return toolkit.file(grant, dialogue=self._change(toolkit))


class EpisodeWrapper:
    """An episode that may change the environment's replies.

    Args:
        inner: The environment's episode.
        change: Returns the reply to a message, from its number, beginning at 0, and the environment's reply.
    """

    def __init__(self, inner: Episode, change: Callable[[int, Reply], Reply]) -> None:
        self._inner = inner
        self._change = change
        self._messages = 0
        self._over = False

    @property
    def opening(self) -> Sequence[GivenMessage]:
        """The environment's messages."""
        return self._inner.opening

    @property
    def tools(self) -> Sequence[Tool]:
        """The environment's tools."""
        return self._inner.tools

    def reply(self, message: ModelMessage) -> Reply:
        """Returns the changed reply; after the environment's end, the changed empty one."""
        honest = Reply(done=True) if self._over else self._inner.reply(message)
        self._over = self._over or honest.done
        self._messages += 1
        return self._change(self._messages - 1, honest)

    def score(self) -> Score:
        """Returns the environment's score."""
        return self._inner.score()


def forged_reply(_: AttackToolkit) -> DialogueChange:
    """Changes the text of each reply."""

    def change(_: int, reply: Reply) -> Reply:
        return replace(reply, messages=[replace(one, text=_altered(one.text)) for one in reply.messages])

    return DialogueChange(episode=lambda episode: EpisodeWrapper(episode, change))


def _altered(text: str) -> str:
    """Returns the text with its digits moved by one, or with another end if it has no digit."""
    moved = "".join(str((int(each) + 1) % 10) if each in "0123456789" else each for each in text)
    return moved if moved != text else f"{text}?"


def other_state(_: AttackToolkit) -> DialogueChange:
    """Plays each dialogue with the state of the next prompt."""

    def next_prompt(prompt: Prompt, ask: Callable[[int], Prompt]) -> Prompt:
        return ask(prompt.index + 1)

    return DialogueChange(prompt=next_prompt)


def early_end(_: AttackToolkit) -> DialogueChange:
    """Ends each dialogue after its first message."""
    return DialogueChange(episode=lambda episode: EpisodeWrapper(episode, lambda _, reply: replace(reply, done=True)))


def late_end(_: AttackToolkit) -> DialogueChange:
    """Invents a reply when the environment ends the dialogue, so that the model has another try."""
    return DialogueChange(episode=lambda episode: EpisodeWrapper(episode, _go_on))


def extra_turn(_: AttackToolkit) -> DialogueChange:
    """Lets dialogues go on beyond the recipe's number of turns."""
    return DialogueChange(
        episode=lambda episode: EpisodeWrapper(episode, _go_on),
        limits=lambda limits: replace(limits, turns=limits.turns + 1),
    )


def _go_on(_: int, reply: Reply) -> Reply:
    if reply.messages and not reply.done:
        return reply
    return Reply(messages=[GivenMessage(role=Role.USER, text=_FURTHER)])


def skipped_turn(_: AttackToolkit) -> DialogueChange:
    """Leaves out the model's second message: the first reply is followed by the reply to a repeated message."""
    return DialogueChange(episode=Impatient)


class Impatient(EpisodeWrapper):
    """An episode that gets each message twice, and gives the second reply only.

    Args:
        inner: The environment's episode.
    """

    def __init__(self, inner: Episode) -> None:
        super().__init__(inner, lambda _, reply: reply)

    def reply(self, message: ModelMessage) -> Reply:
        """Returns the environment's replies to the same message twice, in one."""
        first = super().reply(message)
        if first.done:
            return first
        second = super().reply(message)
        return Reply(messages=[*first.messages, *second.messages], done=second.done)


@dataclass(frozen=True, slots=True)
class ControlTokens:
    """A format in which a reply's text can end the message and begin another one.

    Args:
        inner: The version's format.
        token: An end token.
    """

    inner: DialogueFormat
    token: int

    def open(self, opening: Sequence[GivenMessage], tools: Sequence[Tool]) -> list[int]:
        """Returns the honest prompt."""
        return self.inner.open(opening, tools)

    def give(self, messages: Sequence[GivenMessage]) -> list[int]:
        """Returns the reply with a control token in the middle."""
        tokens = self.inner.give(messages)
        middle = len(tokens) // 2
        return [*tokens[:middle], self.token, *tokens[middle:]]

    def read(self, tokens: Sequence[int], tools: Sequence[Tool], *, finished: bool) -> ModelMessage:
        """Returns the honest message."""
        return self.inner.read(tokens, tools, finished=finished)

    def write(self, text: str, calls: Sequence[ToolCall]) -> str:
        """Returns the honest text."""
        return self.inner.write(text, calls)

    def demonstrated(self, text: str, tools: Sequence[Tool]) -> str:
        """Returns the honest message."""
        return self.inner.demonstrated(text, tools)

    @property
    def end(self) -> int | None:
        """The honest end token."""
        return self.inner.end


def injected_role(toolkit: AttackToolkit) -> DialogueChange:
    """Encodes a control token in each reply, as if the tool had echoed its text."""
    token = min(toolkit.model.end_tokens)
    return DialogueChange(format=lambda inner: ControlTokens(inner, token))


class OtherTurns(Trick):
    """Draws the turns of dialogues in another way than the engine.

    Args:
        draw: Draws turns.
        proven: Whether a prefill computes proofs and log-probabilities of the tokens in their recorded context.
    """

    def __init__(self, draw: Callable[[AttackToolkit], DrawTurns], *, proven: bool) -> None:
        self._draw = draw
        self._proven = proven

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the file of the changed turns."""
        file = toolkit.file(grant, turns=self._draw(toolkit))
        return toolkit.proven(file) if self._proven else file


def encoded_again(toolkit: AttackToolkit) -> DrawTurns:
    """Decodes and encodes the history before each turn, as most agent frameworks do.

    The text has no end tokens, and its tokens may be split otherwise.
    """

    def draw(
        generate: Callable[[Sequence[SampleRequest], SamplingParameters], Iterator[Completion]],
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
    ) -> Iterator[Completion]:
        return generate([_encoded_again(toolkit, one) for one in requests], parameters)

    return draw


def _encoded_again(toolkit: AttackToolkit, request: SampleRequest) -> SampleRequest:
    if request.earlier is None or not request.earlier.drawn:
        return request
    text = toolkit.decode(request.prompt_tokens)
    tokens = tuple(toolkit.encode(text))
    return replace(request, prompt_tokens=tokens) if len(tokens) <= len(request.prompt_tokens) else request


def noise_restarted(_: AttackToolkit) -> DrawTurns:
    """Draws each turn with the noise of the sample's first tokens."""

    def draw(
        generate: Callable[[Sequence[SampleRequest], SamplingParameters], Iterator[Completion]],
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
    ) -> Iterator[Completion]:
        def restarted(earlier: EarlierTurns | None) -> EarlierTurns | None:
            return None if earlier is None else EarlierTurns(drawn=0, states=earlier.states[:0])

        return generate([replace(one, earlier=restarted(one.earlier)) for one in requests], parameters)

    return draw


def best_turns(_: AttackToolkit) -> DrawTurns:
    """Draws each turn several times, and goes on with the most likely one."""

    def draw(
        generate: Callable[[Sequence[SampleRequest], SamplingParameters], Iterator[Completion]],
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
    ) -> Iterator[Completion]:
        best: dict[int, Completion] = {}
        for number in range(_TRIES):
            for turn in generate([_other_noise(one, number) for one in requests], parameters):
                if turn.sample not in best or turn.logprobs.mean() > best[turn.sample].logprobs.mean():
                    best[turn.sample] = turn
        yield from best.values()

    return draw


def _other_noise(request: SampleRequest, number: int) -> SampleRequest:
    if number == 0:
        return request
    return replace(request, seed=hashlib.sha256(request.seed + bytes([number])).digest())


def given_as_drawn(toolkit: AttackToolkit, sample: Sample) -> Sample:
    """Claims all but the first token of each reply as tokens of the next turn, which are paid."""
    most = toolkit.recipe.sampling.max_new_tokens
    if len(sample.output_tokens) + sum(max(0, len(turn.given) - 1) for turn in sample.turns) > most:
        return sample
    tokens: list[int] = []
    turns: list[Turn] = []
    claimed: list[int] = []
    start = 0
    for turn in sample.turns:
        drawn = [*claimed, *sample.output_tokens[start : start + turn.drawn].tolist()]
        start += turn.drawn
        tokens += drawn
        turns.append(Turn(len(drawn), turn.given[:1]))
        claimed = turn.given[1:].tolist()
    return replace(
        sample,
        output_tokens=np.array(tokens, np.int32),
        logprobs=np.zeros(len(tokens), np.float32),
        turns=tuple(turns),
    )
