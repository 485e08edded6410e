"""The compose files: few rights, bounded memory, valid settings, and a clear error on an unfit host."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]
from typer.testing import CliRunner

from cli.configuration.settings import PLACES, settings_class
from cli.lazy import mount
from cli.main import PARTS, app
from orchestrator.settings import OrchestratorSettings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose"
PROGRAM = ROOT / ".tools" / "compose" / "docker-compose"
POOL = {
    "COMPOSE_PROFILES": "training,gateway,monitoring,init,admin",
    "POOL_ID": "7",
    "POOL_URL": "https://pool.example",
    "POOL_DISCOVERY_URL": "https://discovery.example",
    "POOL_RELAY_URL": "https://relay.example",
    "POOL_GATEWAY_URL": "https://gateway.example",
    "POOL_SERVING": "true",
}
FOREIGN = {"redis", "redis-discovery", "prometheus", "grafana"}

if not PROGRAM.exists():
    if "compose" in os.environ.get("MUSTER_REQUIRE", "").split(","):
        pytest.fail("there is no .tools/compose: run deploy/setup/compose.sh")
    pytest.skip("there is no .tools/compose (deploy/setup/compose.sh makes it)", allow_module_level=True)


def configured(file: str, variables: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [str(PROGRAM), "-f", str(COMPOSE / file), "config", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@cache
def pool() -> dict[str, Any]:
    return configured("pool.yml", POOL)


@cache
def worker() -> dict[str, Any]:
    return configured("worker.yml", {"COMPOSE_PROFILES": "init"})


def services() -> dict[str, dict[str, Any]]:
    return {**pool()["services"], **{f"worker.{name}": one for name, one in worker()["services"].items()}}


SERVICES = [
    *("init", "admin", "preflight", "redis", "redis-discovery", "discovery", "orchestrator", "validator"),
    *("trainer", "origin", "relay", "gateway", "prometheus", "grafana", "worker.init", "worker.worker"),
]


def test_the_profiles_start_what_they_name() -> None:
    assert sorted(services()) == sorted(SERVICES)
    always = configured("pool.yml", {})["services"]
    assert set(always) == {"preflight", "redis", "redis-discovery", "discovery", "orchestrator", "validator"}
    assert always["orchestrator"]["environment"]["MUSTER_ORCHESTRATOR_RUN_RELAYS"] == "[]"
    training = configured("pool.yml", {"COMPOSE_PROFILES": "training"})["services"]
    assert set(training) - set(always) == {"trainer", "origin", "relay"}


@pytest.mark.parametrize("name", SERVICES)
def test_containers_have_few_rights_and_bounded_memory(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["user"].split(":")[0] != "0" or name == "init"
    assert service.get("cap_add", []) == (["CHOWN", "DAC_OVERRIDE", "FOWNER"] if name == "init" else [])
    options = service["security_opt"]
    assert "no-new-privileges:true" in options
    sandboxed = name in {"validator", "trainer", "worker.init", "worker.worker"}
    assert any(option.startswith("seccomp") for option in options) == sandboxed
    assert ("systempaths=unconfined" in options) == name.startswith("worker.")
    assert int(service["mem_limit"]) >= 64 << 20
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert not {"privileged", "pid", "ipc", "devices"} & service.keys()
    assert service.get("network_mode") in {None, "none"}
    assert not [mount for mount in service.get("volumes", []) if "docker.sock" in mount["source"]]
    once = name in {"init", "admin", "preflight", "worker.init"}
    assert service.get("restart") == ("no" if once else "on-failure" if name == "trainer" else "unless-stopped")
    if not once and name not in {"trainer", "prometheus", "grafana"}:
        assert service["healthcheck"]["test"]
    for port in service.get("ports", []):
        assert port["host_ip"] == "127.0.0.1", "a proxy on the host terminates TLS"


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"init"}))
def test_a_container_sees_its_own_secrets_only(name: str) -> None:
    service = services()[name]
    folder = COMPOSE / "pool"
    for mounted in service.get("volumes", []):
        source = Path(mounted["source"])
        allowed = {folder / "config", folder / "base"} | ({folder / "backups"} if name == "admin" else set())
        assert source in allowed or not folder.is_relative_to(source), source
        assert not source.is_relative_to(folder / "secrets")
    given = {each["source"] for each in service.get("secrets", [])}
    keys = {each for each in given if each.endswith((".json", "-password")) and each != "grafana-password"}
    role = {"trainer": "publisher", "origin": "publisher"}.get(name, name)
    assert keys <= {f"{role}.json", f"{role}-password"}
    assert not [value for key, value in service.get("environment", {}).items() if re.search("PASSWORD$|_KEY$", key)]


def test_only_services_that_use_redis_reach_it() -> None:
    reach: dict[str, set[str]] = {"redis": set(), "redis-discovery": set()}
    for name, service in pool()["services"].items():
        for network in set(service.get("networks") or ()) & reach.keys():
            reach[network].add(name)
    assert reach["redis"] == {"redis", "orchestrator", "validator", "gateway", "admin"}
    assert reach["redis-discovery"] == {"redis-discovery", "discovery"}
    assert all(pool()["networks"][name]["internal"] for name in reach)


@pytest.mark.parametrize("name", sorted(set(SERVICES) - FOREIGN - {"init", "admin", "preflight", "worker.init"}))
def test_commands_and_variables_are_those_of_the_services(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services()[name]
    told = list(service["command"])
    mount(app, PARTS, told)
    done = CliRunner().invoke(app, [*told, "--help"])
    assert done.exit_code == 0, done.output
    for variable in [variable for variable in os.environ if variable.startswith("MUSTER_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    secrets = {each["target"] for each in service.get("secrets", [])}
    values = dict(service["environment"])
    values["MUSTER_CONFIG"] = str(tmp_path / "muster.toml")
    (tmp_path / "muster.toml").touch()
    for key, value in values.items():
        if value.startswith("/run/secrets/"):
            assert value in secrets, f"{key} names a secret that is not mounted"
            (tmp_path / Path(value).name).write_text("https://rpc.example")
            values[key] = str(tmp_path / Path(value).name)
        monkeypatch.setenv(key, values[key])
    tables = {key.split("_")[1].lower() for key in values if key.startswith("MUSTER_")} - {"config"}
    for table in tables:
        kind = settings_class(table)
        known = {row.variable for row in kind.describe()} | {f"{kind._variable(key)}_FILE" for key in kind._secrets()}
        assert {key for key in values if key.startswith(kind._variable(""))} <= known
        if table != "worker":  # `muster worker init` writes the rest
            kind.load()
    own = {table for table in tables if table in PLACES} - {"sandbox"}
    assert own <= {name.removeprefix("worker.")}


def test_admin_has_the_settings_and_data_of_the_services_in_use_and_no_keystore() -> None:
    found = pool()["services"]
    admin, variables = found["admin"], dict[str, str]()
    for name in ("orchestrator", "validator", "trainer", "gateway"):
        variables |= found[name]["environment"]
    assert admin["environment"] == {**variables, "PROFILES": POOL["COMPOSE_PROFILES"]}
    volumes, mounted = (
        {one["target"]: one["source"] for each in services for one in each["volumes"] if one["type"] == "volume"}
        for services in ([admin], [found["orchestrator"], found["trainer"]])
    )
    assert volumes.items() <= mounted.items()
    sealing_key = Path(variables["MUSTER_ORCHESTRATOR_SECRETS_KEY_FILE"])
    directories = {variables["MUSTER_ORCHESTRATOR_STORAGE_DIRECTORY"], variables["MUSTER_TRAINER_STATE"]}
    assert set(volumes) == {str(sealing_key.parent), *directories}
    assert set(admin["networks"]) == {"redis"}
    assert {one["source"] for one in admin["secrets"]} == {"backup-passphrase", "redis-url", "chain-url"}
    *shell, script, name = admin["entrypoint"]
    script = script.replace("$$", "$").replace("exec python3 -m muster_network", "echo $(env | grep -c _POOL_ID=)")
    for profiles, number in (("", 2), ("training", 3), ("monitoring,gateway", 3)):
        done = subprocess.run(
            [*shell, script, name, "check", "--to", "/backups"],
            env={"PATH": os.environ["PATH"], **variables, "PROFILES": profiles},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{number} admin check --to /backups\n"


def test_memory_limits_are_those_that_preflight_adds_up() -> None:
    found = pool()["services"]
    environment = found["preflight"]["environment"]
    listed = {key: [int(mib) for mib in environment[key].split()] for key in environment if key.startswith("MIB_")}
    limits = {name: int(service["mem_limit"]) >> 20 for name, service in found.items()}
    profiles = {
        "MIB_ALWAYS": ["redis", "redis-discovery", "discovery", "orchestrator", "validator"],
        "MIB_TRAINING": ["trainer", "origin", "relay"],
        "MIB_GATEWAY": ["gateway"],
        "MIB_MONITORING": ["prometheus", "grafana"],
    }
    assert listed == {key: [limits[name] for name in names] for key, names in profiles.items()}
    assert found["init"]["environment"] == {key: environment[key] for key in (*listed, "PROFILES")}


def preflight(
    tmp_path: Path, *arguments: str, variables: Mapping[str, str] | None = None, mib: int = 16_000
) -> subprocess.CompletedProcess[str]:
    """Runs the script that the container runs, with other folders."""
    script = (COMPOSE / "preflight.sh").read_text()
    for place, folder in (("/etc/muster", "config"), ("/run/secrets", "secrets"), ("/base", "base")):
        script = script.replace(place, str(tmp_path / folder))
    (tmp_path / "meminfo").write_text(f"MemTotal:  {mib * 1024} kB\nMemFree: 1 kB\n")
    environment = pool()["services"]["preflight"]["environment"] | {"PROFILES": "training"} | dict(variables or {})
    return subprocess.run(
        ["sh", "-c", script, "preflight.sh", *arguments],
        env={"PATH": os.environ["PATH"], "MEMINFO": str(tmp_path / "meminfo"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_preflight_names_what_a_host_lacks(tmp_path: Path) -> None:
    done = preflight(tmp_path, "memory", mib=8_000)
    assert done.returncode == 1
    assert "may use 14080 MiB of memory together, and this host has 8000 MiB" in done.stderr
    assert "POOL_…_MIB in .env" in done.stderr
    assert preflight(tmp_path, "memory", mib=8_000, variables={"PROFILES": ""}).returncode == 0
    assert preflight(tmp_path, "memory", mib=14_080).returncode == 0

    (tmp_path / "config").mkdir()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/chain-url").write_text("\n")
    for variables, words in (
        ({"POOL_ID": ""}, "POOL_ID in .env is not the number of a pool"),
        ({"POOL_ID": "1 2"}, "POOL_ID in .env is not the number of a pool"),
        ({"POOL_URL": ""}, "POOL_URL is missing"),
        ({"POOL_DISCOVERY_URL": ""}, "POOL_DISCOVERY_URL is missing"),
        ({"POOL_RELAY_URL": ""}, "POOL_RELAY_URL is missing"),
        ({"POOL_GATEWAY_URL": "", "PROFILES": "gateway"}, "POOL_GATEWAY_URL is missing"),
        ({"POOL_SERVING": "false"}, "a run that serves needs both"),
        ({"POOL_GATEWAY_URL": ""}, "a run that serves needs both"),
        ({"POOL_ID": "0"}, "POOL_ID in .env is not the number of a pool"),
        ({"POOL_SUBNET": "10.9.0.0/24"}, "POOL_SUBNET is set in .env without POOL_PROXY"),
        ({"POOL_URL": "pool.example"}, "POOL_URL in .env is 'pool.example', which does not begin with https://"),
        ({"POOL_RELAY_URL": "http://relay.example"}, "POOL_RELAY_URL in .env is 'http://relay.example'"),
        ({}, "run init first"),
    ):
        done = preflight(tmp_path, variables=variables)
        assert (done.returncode, words in done.stderr) == (1, True), done.stderr
    (tmp_path / "config/muster.toml").touch()
    assert "config/deployment.json" in preflight(tmp_path).stderr
    (tmp_path / "config/deployment.json").touch()
    assert "secrets/chain-url in the pool's folder is empty" in preflight(tmp_path).stderr
    (tmp_path / "secrets/chain-url").write_text("https://rpc.example\n")
    (tmp_path / "base").mkdir()  # as Docker makes it if the operator did not
    assert "the trainer has no base model" in preflight(tmp_path).stderr
    assert preflight(tmp_path, variables={"PROFILES": "gateway"}).returncode == 0
    (tmp_path / "base/recipe.json").touch()
    for variables in ({}, {"POOL_URL": "http://pool.example", "POOL_ALLOW_PLAIN_HTTP": "true"}):
        done = preflight(tmp_path, variables=variables)
        assert (done.returncode, done.stderr) == (0, "")


def test_two_pools_and_two_workers_on_one_host_share_nothing() -> None:
    other = configured("pool.yml", POOL | {"POOL_NAME": "pool-2"})
    volumes = [{each["name"] for each in found["volumes"].values()} for found in (pool(), other)]
    assert not volumes[0] & volumes[1]
    workers = [configured("worker.yml", {"WORKER_NAME": name})["volumes"]["worker"]["name"] for name in ("a", "b")]
    assert workers == ["a_worker", "b_worker"]


def test_the_example_of_env_sets_no_comment_as_a_value(tmp_path: Path) -> None:
    lines = (COMPOSE / "pool.env.example").read_text().splitlines()
    assert not [line for line in lines if "#" in line and not line.startswith("#")]


@pytest.mark.skipif(os.geteuid() != 0, reason="init gives files to other users, as root does in its container")
def test_init_makes_every_secret_once_for_the_user_that_reads_it(tmp_path: Path) -> None:
    script = (COMPOSE / "init.sh").read_text()
    script = script.replace("/pool", str(tmp_path)).replace("/compose", str(COMPOSE))
    script = script.replace("keys new", "keys new --light")  # decryption has tests of its own
    (tmp_path / "bin").mkdir()
    python = shutil.which("python3", path=str(ROOT / ".venv/bin")) or shutil.which("python3")
    (tmp_path / "bin/python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (tmp_path / "bin/python3").chmod(0o755)
    environment = pool()["services"]["init"]["environment"] | {"PROFILES": "", "PYTHONPATH": str(ROOT)}
    environment |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": "/nonexistent"}

    def run() -> str:
        done = subprocess.run(
            ["sh", "-c", script], env=environment, cwd="/", capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = run()
    files = {path.name: path for path in (tmp_path / "secrets").iterdir()}
    assert {Path(secret["file"]).name for secret in pool()["secrets"].values()} == set(files) - {"owner-token"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (*files.values(), tmp_path / "backups"))
    owners = {name: path.stat().st_uid for name, path in files.items() if name != "owner-token"}
    for name, service in pool()["services"].items():
        for secret in service.get("secrets", []):
            assert str(owners[secret["source"]]) == service["user"].split(":")[0], f"{name} can't read {secret}"
    assert str((tmp_path / "backups").stat().st_uid) == pool()["services"]["admin"]["user"].split(":")[0]
    password = files["redis.conf"].read_text().split()[1]
    assert files["redis-url"].read_text() == f"redis://:{password}@redis:6379/0\n"
    for role in ("discovery", "orchestrator", "validator", "publisher", "gateway"):
        assert f"0x{json.loads(files[f'{role}.json'].read_text())['address']}".lower() in said.lower()
    tables = tomllib.loads((tmp_path / "config/muster.toml").read_text())
    (token,) = tables["orchestrator"]["tokens"]
    needed = {"public_url": "https://pool.example", "pool_id": 1, "deployment": "d.json"}
    OrchestratorSettings.load(file=tmp_path / "config/muster.toml", flags=needed)
    assert token["scope"] == "admin"

    before = {name: path.read_bytes() for name, path in files.items()}
    (tmp_path / "config/muster.toml").write_text("# mine\n")
    run()
    assert {name: path.read_bytes() for name, path in files.items()} == before
    assert (tmp_path / "config/muster.toml").read_text() == "# mine\n"


def test_prometheus_and_grafana_find_what_the_pool_has() -> None:
    services = pool()["services"]
    jobs = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    for job in jobs:
        (place,) = job.get("static_configs", job.get("dns_sd_configs"))
        name = place["targets"][0].partition(":")[0] if "targets" in place else place["names"][0]
        port = int(place["targets"][0].partition(":")[2]) if "targets" in place else place["port"]
        said = json.dumps([services[name]["command"], services[name]["environment"]])
        assert job["job_name"] == name
        assert str(port) in said
    assert (COMPOSE / "muster.rules.yml").read_bytes() == (ROOT / "deploy/prometheus/muster.rules.yml").read_bytes()
    source = yaml.safe_load((COMPOSE / "grafana/datasource.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    scraped = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped
    (provider,) = yaml.safe_load((COMPOSE / "grafana/provider.yml").read_text())["providers"]
    mounts = {mount["target"]: mount for mount in services["grafana"]["volumes"] if mount["type"] == "bind"}
    assert mounts[provider["options"]["path"]]["source"] == str(COMPOSE / "grafana/dashboards")
    assert all(mount["read_only"] for mount in mounts.values())
    assert not services["trainer"].get("ports"), "its metrics are for Prometheus in the pool's network"


def test_the_example_of_variables_names_those_of_the_file() -> None:
    text = (COMPOSE / "pool.env.example").read_text()
    named = set(re.findall(r"^#? ?([A-Z_]+)=", text, re.MULTILINE))
    used = set(re.findall(r"\$\{([A-Z_]+)", (COMPOSE / "pool.yml").read_text()))
    assert named <= used
    assert {"POOL_ID", "POOL_URL", "POOL_DISCOVERY_URL", "POOL_RELAY_URL", "POOL_GATEWAY_URL"} <= named


def test_foreign_images_are_named_by_digest() -> None:
    for name in FOREIGN:
        assert re.search(r"@sha256:[0-9a-f]{64}$", pool()["services"][name]["image"])


def test_sandboxes_keep_what_bubblewrap_needs_and_lose_what_nothing_needs() -> None:
    profile = json.loads((COMPOSE / "seccomp-sandbox.json").read_text())
    (rule,) = profile["syscalls"]
    assert (profile["defaultAction"], rule["action"]) == ("SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO")
    assert {"ptrace", "process_vm_readv", "process_vm_writev", "bpf", "keyctl", "kexec_load"} <= set(rule["names"])
    assert not {"clone", "clone3", "unshare", "mount", "umount2", "pivot_root", "setns"} & set(rule["names"])
