"""Object keys: each has one canonical text, which parses to the same key."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pydantic import ValidationError

from protocol.errors import InvalidInput
from protocol.identifiers import address, digest
from protocol.wire.uploads import ObjectKey, UploadTicket

KEYS = st.builds(
    ObjectKey,
    pool_id=st.integers(1, 2**63 - 1),
    owner=st.binary(min_size=20, max_size=20).map(lambda raw: address("0x" + raw.hex())),
    sha256=st.binary(min_size=32, max_size=32).map(digest),
    audit=st.booleans(),
)


@given(KEYS)
def test_an_object_key_is_parsed_as_it_was_formatted(key: ObjectKey) -> None:
    assert ObjectKey.parse(str(key)) == key


@given(st.text() | st.from_regex(r"[0-9]+/(audits/)?0x[0-9a-fA-F]{40}/[0-9a-f]{64}"))
def test_any_text_is_a_canonical_key_or_is_refused(text: str) -> None:
    try:
        key = ObjectKey.parse(text)
    except InvalidInput:
        return
    assert str(key) == text


KEY = "1/0x52908400098527886E0F7030069857D2E4169EE7/" + "ab" * 32


@pytest.mark.parametrize(("there", "url"), [(True, "https://x/"), (False, "")])
def test_an_upload_ticket_needs_a_url_unless_the_object_exists(there: bool, url: str) -> None:
    with pytest.raises(ValidationError):
        UploadTicket(key=KEY, already_there=there, url=url)


@pytest.mark.parametrize("headers", [{"a b": "x"}, {"x": "a\r\nb: c"}, {f"h{n}": "x" for n in range(17)}])
def test_an_upload_tickets_headers_are_restricted(headers: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        UploadTicket(key=KEY, already_there=False, url="https://x/", headers=headers)
