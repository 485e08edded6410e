"""The allow list in the formats of nginx and nftables, and its installation."""

from __future__ import annotations

import os
import shutil
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from shardcast.allowlist import FirewallRules, ReloadFailed, allowed_networks, nftables_list, nginx_list, replace_file

CHAIN = Path(__file__).parents[2] / "deploy" / "nftables" / "shardcast.nft"


@given(st.lists(st.ip_addresses()))
def test_exactly_the_given_addresses_are_allowed(ips: list[object]) -> None:
    given_ips = [ip_address(str(ip)) for ip in ips]
    networks = allowed_networks(given_ips)
    inside = {ip for ip in given_ips if any(ip in network for network in networks if network.version == ip.version)}
    mapped = {ip for ip in given_ips if ip.version == 6 and ip.ipv4_mapped is not None}
    assert inside | mapped == set(given_ips)
    assert sum(network.num_addresses for network in networks) == len(set(given_ips)) or mapped


@pytest.mark.parametrize(
    ("ips", "also", "networks"),
    [
        ([], [], []),
        (["203.0.113.7", "203.0.113.7"], [], ["203.0.113.7/32"]),
        (["203.0.113.6", "203.0.113.7"], [], ["203.0.113.6/31"]),
        (["2001:db8::1", "203.0.113.7"], [], ["203.0.113.7/32", "2001:db8::1/128"]),
        (["::ffff:203.0.113.7"], [], ["203.0.113.7/32"]),
        (["203.0.113.7"], ["203.0.113.0/24", "2001:db8::/48"], ["203.0.113.0/24", "2001:db8::/48"]),
    ],
)
def test_networks_are_merged_and_ipv4_mapped_addresses_become_ipv4(
    ips: list[str], also: list[str], networks: list[str]
) -> None:
    assert allowed_networks(map(ip_address, ips), also=also) == tuple(map(ip_network, networks))


@pytest.mark.parametrize("text", ["", "relay.example", "10.0.0.1/8", "10.0.0.0/33", "0; } evil"])
def test_an_invalid_network_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a network"):
        allowed_networks((), also=[text])


def test_nginx_rules_have_one_line_per_network() -> None:
    lines = nginx_list(allowed_networks([ip_address("203.0.113.7"), ip_address("2001:db8::7")])).splitlines()
    assert lines[1:] == ["203.0.113.7/32 1;", "2001:db8::7/128 1;"]


def test_an_allowlist_file_is_replaced_atomically_and_only_if_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "allowed.conf"
    assert replace_file(path, "one")
    first = path.stat()
    assert not replace_file(path, "one")
    assert path.stat().st_mtime_ns == first.st_mtime_ns
    assert replace_file(path, "two")
    assert path.stat().st_ino != first.st_ino  # a process that has the old file open can still read all of it
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["allowed.conf"]


async def test_a_failed_nginx_reload_is_retried(tmp_path: Path) -> None:
    rules = FirewallRules(nginx=tmp_path / "allowed.conf", nginx_pid=tmp_path / "nginx.pid")
    networks = allowed_networks([ip_address("203.0.113.7")])
    with pytest.raises(ReloadFailed, match=r"nginx\.pid"):
        await rules.install(networks)
    # `env` restores the default action of SIGHUP: if the tests run under nohup, child processes ignore this signal.
    command = ["env", "--default-signal=HUP", "sh", "-c", "echo; exec sleep 120"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sleeper:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()  # from here on it receives the signal
        (tmp_path / "nginx.pid").write_text(f"{sleeper.pid}\n")
        assert await rules.install(networks)
        assert sleeper.wait(60) == -1  # SIGHUP
    assert not await rules.install(networks)


def in_a_namespace(script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in its own network namespace.

    So the script does not filter packets of this machine.
    """
    command = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-ec", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed (Debian: apt install nftables)")
def test_nftables_loads_the_chain_and_then_replaces_the_lists(tmp_path: Path) -> None:
    if in_a_namespace("nft list ruleset").returncode:
        pytest.skip("this machine does not allow nftables in a new network namespace")
    many = [ip_address(f"198.51.100.{2 * number}") for number in range(100)]
    (tmp_path / "first").write_text(nftables_list(allowed_networks([*many, ip_address("2001:db8::1")])))
    (tmp_path / "second").write_text(nftables_list(allowed_networks([ip_address("203.0.113.7")], also=["10.0.0.0/8"])))
    (tmp_path / "none").write_text(nftables_list(()))
    sets = "nft list set inet muster allowed4; nft list set inet muster allowed6"
    ran = in_a_namespace(
        f"nft -f {CHAIN}; nft -f {tmp_path}/first; {sets}; echo SPLIT; nft -f {tmp_path}/second; {sets}; echo SPLIT;"
        f"nft -f {tmp_path}/none; nft list ruleset"
    )
    assert ran.returncode == 0, ran.stderr
    first, second, none = ran.stdout.split("SPLIT")
    assert "198.51.100.198" in first
    assert "2001:db8::1" in first
    assert "10.0.0.0/8, 203.0.113.7" in second
    assert "198.51.100" not in second
    assert "elements" not in none
    assert "drop" in none
