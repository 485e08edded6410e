"""Conversations: who ends a dialogue, at which limit, and what the model is given."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from rollouts.dialogue.conversation import NOT_ENCODABLE, TOO_LONG, Conversation, DialogueLimits
from rollouts.dialogue.formats import FormatName, open_format
from rollouts.engines.interface import FinishReason
from rollouts.environments import load_environment
from rollouts.errors import BadVersionFolder
from rollouts.turns import Turn, drawn_places, interleave, turns_fault

END = 0


class Bytes:
    """A tokenizer whose tokens are bytes; byte 0 ends a message."""

    def encode(self, text: str) -> Sequence[int]:
        return [*text.encode()]

    def encode_answer(self, text: str) -> Sequence[int]:
        return [*text.encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()


def conversation(*, turns: int = 4, new_tokens: int = 40, reply_tokens: int = 8, context: int = 100) -> Conversation:
    environment = load_environment("lookup")
    episode = environment.begin(environment.prompt(3))
    return Conversation(
        episode,
        prompt_tokens=[*episode.opening[0].text.encode()],
        dialogue_format=open_format(FormatName.PLAIN, Bytes()),
        limits=DialogueLimits(turns=turns, new_tokens=new_tokens, reply_tokens=reply_tokens, context=context),
        end_tokens={END},
    )


def said(text: str) -> list[int]:
    return [*text.encode(), END]


def test_two_calls_find_the_answer() -> None:
    environment = load_environment("lookup")
    prompt = environment.prompt(3)
    wanted = environment.demonstration(prompt)
    assert wanted is not None
    talk = conversation()
    for letter, digit in zip(prompt.text[:2], wanted, strict=True):
        talk.add(said(f"get({letter})"))
        assert bytes(talk.turns[-1].given.tolist()) == f"={digit};".encode()
        assert not talk.over
    talk.add(said(wanted))
    assert talk.over
    assert talk.score().task == 1.0
    assert talk.finish is FinishReason.EOS
    assert talk.room == 0
    assert interleave(np.array(talk.drawn, np.int32), talk.turns).tolist() == talk.tokens


ENDS = {
    "an answer": ({}, [said("12")], [()]),
    "the last turn": ({"turns": 1}, [said("get(a)")], [()]),
    "no new token left": ({"new_tokens": 7}, [said("get(a)")], [()]),
    "a reply as long as the rest of the new tokens": ({"new_tokens": 7 + 3}, [said("get(a)")], [()]),
    "a reply that fills the context": ({"context": 3 + 7 + 3}, [said("get(a)")], [()]),
    "a message that is cut off": ({"new_tokens": 5}, [[*b"get(a"]], [()]),
    "a reply that is too long, even as an error": ({"reply_tokens": 2}, [said("get(a)")], [()]),
}


@pytest.mark.parametrize(("limits", "messages", "given"), ENDS.values(), ids=ENDS.keys())
def test_a_dialogue_ends(limits: dict[str, int], messages: list[list[int]], given: list[Sequence[int]]) -> None:
    talk = conversation(**limits)
    for message in messages:
        assert not talk.over
        talk.add(message)
    assert talk.over
    assert [tuple(turn.given) for turn in talk.turns] == given
    assert talk.fault_of(said("1")) == "the dialogue is over"


def test_tool_errors_are_replies() -> None:
    talk = conversation(reply_tokens=len(TOO_LONG), new_tokens=60, context=300)
    talk.add(said("put(a)"))
    assert bytes(talk.turns[-1].given.tolist()).decode() == "error: there is no such tool"
    talk.add(said("get(zz)"))
    assert bytes(talk.turns[-1].given.tolist()).decode() == "=?;"


@pytest.mark.parametrize(("fails", "given"), [(1, NOT_ENCODABLE), (2, None)], ids=["the reply", "its error text too"])
def test_a_reply_that_cant_be_encoded_is_no_error_of_the_machine(
    fails: int, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = itertools.count(fails, -1)

    def encode_answer(_: Bytes, text: str) -> Sequence[int]:
        if next(left) > 0:
            raise BadVersionFolder("the text has all marks")
        return [*text.encode()]

    monkeypatch.setattr(Bytes, "encode_answer", encode_answer)
    talk = conversation(reply_tokens=40)
    talk.add(said("get(a)"))
    assert talk.over == (given is None)
    assert bytes(talk.turns[-1].given.tolist()).decode() == (given or "")


WRONG = {
    "nothing": ([], "1 to 10 are allowed"),
    "too many tokens": ([65] * 11, "1 to 10 are allowed"),
    "tokens after the end": ([END, 65], "follow the end token"),
    "stopped early": ([65] * 9, "without an end token"),
}


@pytest.mark.parametrize(("drawn", "why"), WRONG.values(), ids=WRONG.keys())
def test_tokens_that_no_turn_can_have_are_refused(drawn: list[int], why: str) -> None:
    talk = conversation(new_tokens=10)
    assert why in talk.fault_of(drawn)
    with pytest.raises(ValueError, match=why):
        talk.add(drawn)
    assert not talk.turns


def test_turns_interleave_drawn_and_given_tokens() -> None:
    turns = (Turn(2, np.array([7, 8, 9], np.int32)), Turn(1, np.zeros(0, np.int32)))
    drawn = np.array([1, 2, 3], np.int32)
    assert interleave(drawn, turns).tolist() == [1, 2, 7, 8, 9, 3]
    assert drawn_places(turns, drawn=3).tolist() == [0, 1, 5]
    assert not turns_fault(turns, drawn=3)
    assert turns_fault(turns, drawn=4) == "its turns have 3 drawn tokens, but it has 4"
    assert interleave(drawn, ()) is drawn
