"""Plays the dialogue of a row again in the environment of this machine, and compares it with the row."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from protocol.verdicts import ReasonCode
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import first_difference
from rollouts.dialogue.conversation import Conversation
from rollouts.environments import Prompt, Reward
from rollouts.files.samples import Sample
from rollouts.sandbox.deadline import latest_end

_SHOWN = 12
"""Maximum number of tokens, from the first different one on, that a finding lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueFault:
    """First difference between a row's dialogue and its replay.

    Args:
        reason: The ledger's reason code.
        what: Description with the found and the expected tokens.
        position: The turn's last drawn token, as output token of the row.
        ends_at_limit: Whether the row ends without reward after a turn to which the environment replies, and the
            environment has limits of time or memory. An honest node's row does so if a call reached such a limit.
    """

    reason: ReasonCode
    what: str
    position: int
    ends_at_limit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedDialogue:
    """A row's dialogue as the environment of this machine gives it.

    Args:
        reward: The dialogue's reward; None if there is a difference, or if the time for all rows was over. It is
            undecided if a call reached a limit on this machine, which ended the replay.
        fault: The first difference; None if the dialogues are equal as far as this machine could replay them.
    """

    reward: Reward | None
    fault: DialogueFault | None


def replay(case: CheckInput, row: int, prompt: Prompt) -> ReplayedDialogue:
    """Plays the dialogue of a row again, from its drawn tokens, up to the first difference.

    Args:
        case: The file; its version has dialogues.
        row: A row whose turns are within the limits of check 5.
        prompt: The row's prompt.

    Raises:
        EnvironmentFault: The environment breaks its contract.
        SandboxUnavailable: This machine has no sandbox for the environment's code.
    """
    sample, planner = case.file.samples[row], case.version.planner
    tokens = sample.prompt_tokens.tolist()
    conversation = planner.converse(prompt, tokens, model=case.version.model)
    drawn, stop, why = sample.output_tokens.tolist(), 0, ""
    fault: DialogueFault | None = None
    for number, turn in enumerate(sample.turns):
        if time.monotonic() >= latest_end():
            return ReplayedDialogue(reward=None, fault=None)
        start, stop = stop, stop + turn.drawn
        why = conversation.fault_of(drawn[start:stop])
        if why:  # after check 6, only a dialogue that is over
            what = f"turn {number} can't follow: {why}"
            fault = DialogueFault(reason=ReasonCode.DIALOGUE_END, what=what, position=start)
            break
        conversation.add(drawn[start:stop])
        fault = _difference(case, sample, number, conversation, position=stop - 1)
        if fault is not None:
            break
    if fault is None or conversation.limited:
        return ReplayedDialogue(reward=planner.dialogue_reward(conversation), fault=None)
    if not conversation.over and not why and stop == len(drawn) and not sample.task_reward and planner.dialogue_reward(conversation).limited:
        fault = replace(fault, ends_at_limit=True)
    return ReplayedDialogue(reward=None, fault=fault)


def _difference(
    case: CheckInput, sample: Sample, number: int, conversation: Conversation, *, position: int
) -> DialogueFault | None:
    """Compares what follows a turn with the replay, which has just taken that turn."""
    found, expected = sample.turns[number].given, conversation.turns[number].given
    at = first_difference(found, expected.tolist())
    if at is None:
        return None
    texts = _text(case, found), _text(case, expected)
    if not len(expected):
        what = f"the dialogue ends after turn {number}, but the row goes on with {texts[0]}"
        return DialogueFault(reason=ReasonCode.DIALOGUE_END, what=what, position=position)
    if not len(found):
        what = f"the row ends after turn {number}, but the environment goes on with {texts[1]}"
        return DialogueFault(reason=ReasonCode.DIALOGUE_END, what=what, position=position)
    what = (
        f"after turn {number}, given token {at} is {_tokens(found, at)} instead of {_tokens(expected, at)}; the row "
        f"has {texts[0]}, the environment replies {texts[1]}"
    )
    return DialogueFault(reason=ReasonCode.DIALOGUE_REPLY, what=what, position=position)


def _tokens(tokens: NDArray[np.int32], at: int) -> str:
    shown = " ".join(str(token) for token in tokens[at : at + _SHOWN].tolist())
    return (shown or "missing") + (" …" if len(tokens) > at + _SHOWN else "")


def _text(case: CheckInput, tokens: NDArray[np.int32]) -> str:
    return f"{case.version.tokenizer.decode(tokens.tolist())!r:.200}"
