"""Forward passes of a prefill, through the same interface as generation (`rollouts.models.policy`).

Attention is transformers' scaled dot product with a custom mask, on any device. The number of tokens and the bytes of
logits are bounded in each pass, so memory does not depend on the size of the file or the vocabulary.

Shapes: n tokens of a pass, r requested rows, s visible places, h hidden, v tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import DynamicCache

from protocol.errors import InvalidInput
from rollouts.models.policy import Policy
from rollouts.prefill.packing import PrefillItem, PrefillPiece, pack, row_length, stretches

_TOKENS_AT_ONCE = {"cpu": 512}
_TOKENS_AT_ONCE_ELSEWHERE = 4096
"""Maximum tokens of a pass. The size of the mask, and the attention computed for masked pairs of tokens, grow with the
square of this number; with fewer tokens the matrix products are inefficient."""
_TOKENS_IN_ROWS = {"cpu": 768}
"""Maximum tokens of a pass whose answers are rows; other devices use the default. Rows need no mask between them, so a
pass of rows can be larger. On a CPU the processor's cache, which should hold the activations between layers, limits it.
"""
_LOGIT_BYTES = {"cpu": 128 << 20}
_LOGIT_BYTES_ELSEWHERE = 2 << 30
"""Maximum bytes of a pass's logits in float32."""
_PROMPT = -1


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """Part of one answer.

    Args:
        answer: Index of the answer.
        start: Index of the first token.
        stop: Index after the last token.
    """

    answer: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Output of one pass.

    Over all passes, the spans of an answer come in order and together cover the answer.

    Args:
        spans: The spans of answers to which the rows of `states` and `logits` belong, one after another.
        states: [R, H], the final hidden state from which each token was drawn, in the policy's type.
        logits: [R, V], the logits from which each token was drawn. The logits are valid until the next pass.
    """

    spans: tuple[AnswerSpan, ...]
    states: torch.Tensor
    logits: torch.Tensor


def usual_tokens(device: torch.device) -> int:
    """Returns the default maximum tokens of a pass."""
    return _TOKENS_AT_ONCE.get(device.type, _TOKENS_AT_ONCE_ELSEWHERE)


@torch.no_grad()
def prefill(
    policy: Policy, answers: Sequence[PrefillItem], *, tokens_at_once: int | None = None
) -> Iterator[PrefillRows]:
    """Computes the states and logits of every token of every answer, pass by pass, in any order.

    Args:
        policy: The loaded version.
        answers: The answers to compute. Short answers with equal prompts share the prompt's computation.
        tokens_at_once: Maximum tokens of a pass; None for the device's default.

    Raises:
        InvalidInput: A token is outside the vocabulary, or an answer does not fit in the model's context.
    """
    _check(policy, answers)
    device = policy.device.type
    most = max(1, _LOGIT_BYTES.get(device, _LOGIT_BYTES_ELSEWHERE) // (4 * policy.facts.vocabulary))
    usual = usual_tokens(policy.device)
    in_rows = tokens_at_once or _TOKENS_IN_ROWS.get(device, usual)
    capacity = min(tokens_at_once or usual, most)
    packing = pack(answers, capacity=capacity, row_capacity=min(in_rows, most))
    for places in packing.rows:
        yield _in_rows(policy, answers, places)
    for pieces in packing.passes:
        yield _side_by_side(policy, answers, pieces)
    for piece in packing.long:
        yield from _one_group(policy, answers, piece, capacity)


def _check(policy: Policy, answers: Sequence[PrefillItem]) -> None:
    facts = policy.facts
    for place, answer in enumerate(answers):
        if len(answer.prompt) + len(answer.output) > facts.context:
            raise InvalidInput(
                f"answer {place} has {len(answer.prompt)} prompt and {len(answer.output)} output tokens, more than "
                f"the model's context of {facts.context}"
            )
        for tokens in (answer.prompt, answer.output):
            if not 0 <= int(tokens.min()) <= int(tokens.max()) < facts.vocabulary:
                raise InvalidInput(f"answer {place} has a token outside the vocabulary of {facts.vocabulary}")


class _Layout:
    """The tokens of a pass, each with its position, group and answer."""

    def __init__(self) -> None:
        self._tokens: list[NDArray[np.int32]] = []
        self._runs: list[tuple[int, int, int, int]] = []

    def lay(self, tokens: NDArray[np.int32], *, start: int, group: int, answer: int) -> None:
        self._tokens.append(tokens)
        self._runs.append((len(tokens), start, group, answer))

    def on(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Returns tokens, positions, groups and answers, int64 [n] each."""
        tokens = np.concatenate(self._tokens).astype(np.int64)
        positions = np.concatenate([np.arange(start, start + length) for length, start, _, _ in self._runs])
        lengths = [run[0] for run in self._runs]
        groups, answers = (np.repeat([run[at] for run in self._runs], lengths) for at in (2, 3))
        return tuple(torch.from_numpy(one).to(device) for one in (tokens, positions, groups, answers))


def _in_rows(policy: Policy, answers: Sequence[PrefillItem], places: Sequence[int]) -> PrefillRows:
    """Computes answers as rows padded at the end; the output layer skips the padding."""
    longest = row_length(answers[places[0]])
    tokens, wanted = np.zeros((len(places), longest), np.int64), np.zeros((len(places), longest), np.bool_)
    for row, answer in enumerate(answers[place] for place in places):
        before, whole = len(answer.prompt) - 1, row_length(answer)
        tokens[row, :whole] = np.concatenate([answer.prompt[:-1], answer.inputs])
        wanted[row, before:whole] = True
    device = policy.device
    keep = torch.from_numpy(np.flatnonzero(wanted)).to(device)
    states, logits = policy.states_and_logits(torch.from_numpy(tokens).to(device), keep=keep)
    spans = tuple(AnswerSpan(place, 0, len(answers[place].output)) for place in places)
    return PrefillRows(spans, states[0], logits[0])


def _side_by_side(policy: Policy, answers: Sequence[PrefillItem], pieces: Sequence[PrefillPiece]) -> PrefillRows:
    layout, spans = _Layout(), []
    for group, piece in enumerate(pieces):
        if len(piece.prefix):
            layout.lay(piece.prefix, start=0, group=group, answer=_PROMPT)
        for place in piece.answers:
            layout.lay(answers[place].inputs, start=len(piece.prefix), group=group, answer=place)
            spans.append(AnswerSpan(place, 0, len(answers[place].output)))
    tokens, positions, groups, owners = layout.on(policy.device)
    seen = (owners[None, :] == _PROMPT) | (owners[None, :] == owners[:, None])
    seen &= (groups[None, :] == groups[:, None]) & (positions[None, :] <= positions[:, None])
    states, logits = policy.states_and_logits(
        tokens[None],
        keep=torch.nonzero(owners != _PROMPT)[:, 0],
        positions=positions[None],
        mask=seen[None, None],
    )
    return PrefillRows(tuple(spans), states[0], logits[0])


def _one_group(
    policy: Policy, answers: Sequence[PrefillItem], piece: PrefillPiece, capacity: int
) -> Iterator[PrefillRows]:
    """Computes the prefix once into a cache, then the answers pass by pass.

    Before a pass that begins new answers, the function removes the earlier answers from the cache.
    """
    cache: Any = DynamicCache()  # transformers annotates only some of its methods
    prefix = torch.from_numpy(piece.prefix.astype(np.int64)).to(policy.device)
    for start in range(0, len(prefix), capacity):
        policy.fill(prefix[None, start : start + capacity], cache=cache)
    lengths = [len(answers[place].output) for place in piece.answers]
    for cuts in stretches(lengths, capacity=capacity):
        if cuts[0][1] == 0 and (above := cache.get_seq_length() - len(prefix)) > 0:
            if len(prefix):
                cache.crop(-above)
            else:
                cache = DynamicCache()
        layout, spans = _Layout(), []
        for number, start, stop in cuts:
            place = piece.answers[number]
            layout.lay(answers[place].inputs[start:stop], start=len(prefix) + start, group=0, answer=place)
            spans.append(AnswerSpan(place, start, stop))
        tokens, positions, _, owners = layout.on(policy.device)
        before = cache.get_seq_length()
        own = (owners[None, :] == owners[:, None]) & (positions[None, :] <= positions[:, None])
        seen = torch.cat([own.new_ones(len(tokens), before), own], dim=1)
        states, logits = policy.states_and_logits(
            tokens[None], positions=positions[None], mask=seen[None, None], cache=cache
        )
        yield PrefillRows(tuple(spans), states[0], logits[0])
