"""Nodes register, refresh, read and remove their own record and no other."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from discovery.store.records import origin_of, read_cursor
from protocol.errors import Forbidden, InvalidInput, NotFound, RateLimited, Unauthenticated
from protocol.identity.keys import Key
from tests.kit.discovery import NODE, OTHER_NODE, POOL, PROVIDER, SERVICE, Opening, Place, registration


async def test_a_node_registers_and_reads_its_own_record(place: Place) -> None:
    node = place.client(NODE, ip="192.0.2.44")
    registered = await node.register(registration(labels={"site": "attic"}))
    assert (registered.address, registered.ip) == (NODE.address, "192.0.2.44")
    assert registered.expires_at_ms - registered.last_seen_ms == 300_000
    assert await node.record() == registered


async def test_a_record_lasts_only_while_it_is_refreshed(place: Place) -> None:
    node = place.client(NODE)
    first = await node.register(registration())
    await place.clock.turn(timedelta(seconds=299))
    second = await node.register(registration(labels={"moved": "yes"}))
    assert second.first_seen_ms == first.first_seen_ms
    await place.clock.turn(timedelta(seconds=299))
    assert (await node.record()).registration.labels == {"moved": "yes"}
    await place.clock.turn(timedelta(seconds=2))
    with pytest.raises(NotFound):
        await node.record()


async def test_a_node_that_returns_after_its_record_expired_is_new(place: Place) -> None:
    node = place.client(NODE)
    first = await node.register(registration())
    await place.clock.turn(timedelta(seconds=301))
    assert (await node.register(registration())).first_seen_ms > first.first_seen_ms


async def test_a_node_deletes_its_own_record(place: Place) -> None:
    node = place.client(NODE)
    await node.register(registration())
    await node.sign_off()
    with pytest.raises(NotFound):
        await node.record()
    await node.sign_off()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_node_cannot_read_or_change_another_nodes_record(place: Place, method: str) -> None:
    await place.client(NODE).register(registration())
    other = place.client(OTHER_NODE)
    body = registration() if method == "PUT" else None
    with pytest.raises(Forbidden) as refused:
        await other.call(method, f"/v1/nodes/{NODE.address}", body=body)
    assert refused.value.code == "another-node"
    assert (await place.client(NODE).record()).address == NODE.address


async def test_the_recorded_ip_is_the_observed_one(place: Place) -> None:
    response = await place.http(ip="198.51.100.9").get("/v1/identity", headers={"X-Forwarded-For": "203.0.113.5"})
    assert response.status_code == 200
    assert (await place.client(NODE, ip="198.51.100.9").register(registration())).ip == "198.51.100.9"


async def test_forwarded_ips_are_trusted_only_from_configured_proxies(open_place: Opening) -> None:
    async with open_place(trusted_proxies=["10.0.0.0/8"]) as place:
        for via, expected in (("10.1.2.3", "203.0.113.5"), ("192.0.2.1", "192.0.2.1")):
            client = place.client(NODE, ip=via)
            answer = await client.call(
                "PUT",
                f"/v1/nodes/{NODE.address}",
                body=registration(),
                headers={"X-Forwarded-For": "198.51.100.1, 203.0.113.5"},
            )
            assert answer.status == 200
            assert (await place.client(NODE, ip=via).record()).ip == expected


async def test_the_number_of_nodes_per_ip_is_limited(open_place: Opening) -> None:
    async with open_place(nodes_per_ip=3) as place:
        keys = [Key.generate() for _ in range(4)]
        for key in keys[:3]:
            await place.client(key).register(registration())
        with pytest.raises(RateLimited) as refused:
            await place.client(keys[3]).call(
                "PUT",
                f"/v1/nodes/{keys[3].address}",
                body=registration(),
                call_timeout=timedelta(milliseconds=1),
            )
        assert refused.value.code == "too-many-nodes"
        await place.client(keys[0]).register(registration())  # a registered node may refresh
        await place.client(keys[3], ip="192.0.2.2").register(registration())  # another IP has its own limit


async def test_signing_off_frees_no_place_for_another_node_on_the_same_ip(open_place: Opening) -> None:
    async with open_place(nodes_per_ip=1) as place:
        node = place.client(NODE)
        await node.register(registration())
        await node.sign_off()
        http = place.client(OTHER_NODE)
        with pytest.raises(RateLimited):
            await http.call(
                "PUT", f"/v1/nodes/{OTHER_NODE.address}", body=registration(), call_timeout=timedelta(milliseconds=1)
            )
        await place.clock.turn(timedelta(seconds=301))
        await place.client(OTHER_NODE).register(registration())


async def test_half_of_a_pools_places_are_reserved_for_nodes_registered_on_the_ledger(open_place: Opening) -> None:
    async with open_place(nodes_per_pool=2) as place:
        await place.client(NODE).register(registration())
        late = place.client(OTHER_NODE)
        path, soon = f"/v1/nodes/{OTHER_NODE.address}", timedelta(milliseconds=1)
        with pytest.raises(RateLimited) as refused:
            await late.call("PUT", path, body=registration(), call_timeout=soon)
        assert refused.value.code == "pool-full"
        await place.learn(providers={OTHER_NODE.address: PROVIDER.address})
        assert (await late.call("PUT", path, body=registration(), call_timeout=soon)).status == 200


async def test_registration_for_an_unknown_pool_is_refused(place: Place) -> None:
    with pytest.raises(NotFound) as refused:
        await place.client(NODE).register(registration(pool_id=POOL + 1))
    assert refused.value.code == "unknown-pool"


async def test_registration_for_a_new_pool_is_accepted_while_the_ledger_cannot_be_read(place: Place) -> None:
    place.ledger.is_down = True
    await place.clock.turn(timedelta(seconds=61))
    assert (await place.client(NODE).register(registration(pool_id=POOL + 1))).facts_as_of_ms > 0


async def test_a_record_shows_provider_stake_and_ban_from_the_ledger(place: Place) -> None:
    await place.learn(
        providers={NODE.address: PROVIDER.address},
        stakes={PROVIDER.address: 5 * 10**18},
        bans={(POOL, PROVIDER.address): True},
    )
    record = await place.client(NODE).register(registration())
    assert (record.provider, record.stake, record.banned) == (PROVIDER.address, str(5 * 10**18), True)
    await place.learn(bans={(POOL, PROVIDER.address): False}, providers={NODE.address: None})
    record = await place.client(NODE).record()
    assert (record.provider, record.stake, record.banned) == (None, "0", False)


async def test_expired_records_are_removed_completely(place: Place) -> None:
    await place.client(NODE).register(registration())
    records = place.app.state.directory.records
    async with asyncio.timeout(60):  # the loop's rounds wait for Redis, which the manual clock does not advance
        while place.clock.monotonic() <= 310 or await records.count():
            await place.clock.turn(timedelta(seconds=5))
            await asyncio.sleep(0.01)
    assert (await place.app.state.directory.records.page(POOL, after=None, most=10)).records == ()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"/v1/nodes/{NODE.address}", b"not json", 422),
        (f"/v1/nodes/{NODE.address}", b"{}", 422),
        (f"/v1/nodes/{NODE.address}", registration().model_dump_json().encode().replace(b'"labels"', b'"lables"'), 422),
        (f"/v1/nodes/{NODE.address}", b"x" * (24 * 1024 + 1), 413),
        ("/v1/nodes/0x1234", b"{}", 400),
        (f"/v1/nodes/{NODE.address[:-1]}", b"{}", 400),
    ],
)
async def test_an_invalid_registration_is_refused_with_a_reason(
    place: Place, path: str, body: bytes, status: int
) -> None:
    service = place.client(NODE)
    with pytest.raises(Exception) as refused:  # noqa: PT011 - the type of the error differs per case; the status is checked
        await service.call("PUT", path, body=body)
    assert getattr(refused.value, "status", None) == status
    assert getattr(refused.value, "detail", "")


async def test_an_answer_signed_by_another_key_is_refused(place: Place) -> None:
    place.app.state.key = Key.generate()
    with pytest.raises(Unauthenticated) as refused:
        await place.client(NODE).register(registration())
    assert refused.value.code == "forged-answer"


async def test_a_client_without_a_pinned_address_fetches_the_services_identity(place: Place) -> None:
    client = place.client(NODE, pinned=False)
    assert (await client.identity()).address == SERVICE.address
    assert (await client.register(registration())).address == NODE.address


async def test_a_client_without_a_pinned_address_accepts_a_rotated_key_and_says_so(place: Place) -> None:
    pinned, unpinned = place.client(NODE), place.client(OTHER_NODE, pinned=False)
    await pinned.register(registration())
    await unpinned.register(registration())
    rotated = Key.generate()
    place.app.state.key = rotated
    place.app.state.verifier._audiences = lambda: (rotated.address,)
    with capture_logs() as logs:
        assert (await unpinned.record()).address == OTHER_NODE.address
        assert (await unpinned.record()).address == OTHER_NODE.address
    changes = [line for line in logs if line["event"] == "service-address-changed"]
    assert [(line["before"], line["now"], line["log_level"]) for line in changes] == [
        (SERVICE.address, rotated.address, "warning")
    ]
    with pytest.raises(Unauthenticated) as refused:
        await pinned.record()
    assert refused.value.code == "wrong-audience"


async def test_a_client_refuses_a_service_other_than_the_pinned_one(place: Place) -> None:
    place.app.state.key = Key.generate()
    with pytest.raises(Unauthenticated) as refused:
        await place.client(NODE).identity()
    assert refused.value.code == "wrong-service"


@pytest.mark.parametrize(
    ("ip", "origin"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001-0db8-0001-0002-0000-0000-0000-0000"),
        ("2001:db8:1:2::1", "2001-0db8-0001-0002-0000-0000-0000-0000"),
        ("local", "local"),
        ("fe80::1%eth0", "fe80-0000-0000-0000-0000-0000-0000-0000"),
    ],
)
def test_an_ipv6_network_counts_as_one_origin(ip: str, origin: str) -> None:
    assert origin_of(ip) == origin


@given(st.text(max_size=60))
def test_the_origin_of_any_ip_contains_no_redis_key_separator(text: str) -> None:
    assert not set(origin_of(text)) & set(":{}")


def test_a_cursor_that_no_page_returned_is_refused() -> None:
    with pytest.raises(InvalidInput):
        read_cursor("[")
