"""JSON of answers to OpenAI clients."""

from __future__ import annotations

from protocol.openai.replies import ReplyFormat


def test_parts_of_a_character_have_no_bytes() -> None:
    """The text of such a token is a replacement character, whose bytes are not the token's."""
    form = ReplyFormat(identifier="1", created=1, model="m", chat=True, logprobs=True, fingerprint="f")
    shown = form.shown_logprobs(["é", "\ufffd", ""], [-1.0, -2.0, -3.0])
    assert [one["bytes"] for one in shown["content"]] == [[0xC3, 0xA9], None, []]
