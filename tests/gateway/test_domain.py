"""Properties of the decisions without I/O."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.answers import CollectedAnswer, SentTokens
from gateway.domain.parts import read_part, write_part
from protocol.wire.serving import AnswerTokens
from tests.kit.gateway import text_of


def cut(tokens: list[int], sizes: list[int], choice: int) -> list[AnswerTokens]:
    """Returns parts of these sizes."""
    parts: list[AnswerTokens] = []
    at = 0
    for size in [*sizes, len(tokens)]:
        piece = tuple(tokens[at : at + size])
        parts.append(
            AnswerTokens(choice=choice, tokens=piece, logprobs=tuple(float(one) for one in piece), text=text_of(piece))
        )
        at += size
    return [part for part in parts if part.tokens]


Sizes = st.lists(st.integers(1, 5), max_size=6)
Tokens = st.lists(st.integers(0, 25), max_size=20)


@given(first=Tokens, second=Tokens, third=Tokens, sizes=st.tuples(Sizes, Sizes, Sizes))
def test_a_stream_never_changes_and_never_repeats(
    first: list[int], second: list[int], third: list[int], sizes: tuple[list[int], ...]
) -> None:
    """Whatever later attempts draw, the client has a prefix of the last attempt, or the stream has ended."""
    sent, text = SentTokens(2), ""
    got: list[int] = []
    for tokens, cuts in zip((first, second, third), sizes, strict=True):
        sent.start_again()
        for part in cut(tokens, cuts, 1):
            news = sent.news(part)
            if news is None:
                assert got[: len(tokens)] != tokens[: len(got)]
                return
            assert len(news.tokens) == len(news.logprobs)
            got += news.tokens
            text += news.text
        assert got[: len(tokens)] == tokens
        assert text == text_of(got)


@given(Tokens, Sizes)
def test_stored_parts_are_read_as_they_were_written(tokens: list[int], sizes: list[int]) -> None:
    collected = CollectedAnswer(2)
    for part in cut(tokens, sizes, 1):
        collected.add(read_part(write_part([part])))
    assert (collected.choices[1].tokens, collected.choices[1].text) == (tokens, text_of(tokens))
    assert collected.choices[0].tokens == []
