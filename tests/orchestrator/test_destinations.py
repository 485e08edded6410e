"""Checks of webhook URLs: no request may go into the orchestrator's own network."""

from __future__ import annotations

import pytest

from orchestrator.webhook_urls import check_destination
from protocol.errors import InvalidInput
from protocol.http.url_safety import is_public


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b::5db8:d70e", True),
        ("64:ff9b::c000:c0", False),
        ("64:ff9b:1::a00:1", False),
        ("2002:5db8:d70e::1", True),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
        ("::127.0.0.1", False),
        ("::93.184.215.14", False),
        ("::ffff:0:127.0.0.1", False),
        ("fec0::1", False),
        ("4000::1", False),
        ("5f00::1", False),
        ("3fff::1", False),
        ("2001:db8::1", False),
        ("ff0e::1", False),
        ("192.0.0.192", False),
        ("192.88.99.1", False),
        ("168.63.129.16", False),
        ("255.255.255.255", False),
    ],
)
def test_only_globally_routable_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://127.0.0.1/x", "private-webhook-url"),
        ("https://[::ffff:169.254.169.254]/latest", "private-webhook-url"),
        ("https://2130706433/x", "private-webhook-url"),
        ("https://[fec0::1]/x", "private-webhook-url"),
        ("https://[64:ff9b:1::a00:1]/x", "private-webhook-url"),
        ("https://192.0.0.192/opc/v2/", "private-webhook-url"),
        ("https://localhost/x", "private-webhook-url"),
        ("http://93.184.215.14/x", "bad-webhook-url"),
        ("file:///etc/passwd", "bad-webhook-url"),
        ("https://user:secret@93.184.215.14/", "bad-webhook-url"),
        ("https:///x", "bad-webhook-url"),
    ],
)
async def test_a_url_into_a_private_network_is_refused(url: str, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await check_destination(url, allow_private=False)
    assert refused.value.code == code


async def test_the_checked_address_is_returned_in_place_of_the_name() -> None:
    assert await check_destination("https://93.184.215.14/x", allow_private=False) == ["93.184.215.14"]
    assert await check_destination("http://127.0.0.1:8/x", allow_private=True) == ["127.0.0.1"]
