"""The Helm charts render objects that three versions of Kubernetes accept, with few rights and valid settings."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]
from typer.testing import CliRunner

from cli.configuration.settings import PLACES, settings_class
from cli.lazy import mount
from cli.main import PARTS, app
from protocol.http.rates import HEALTH_PATHS

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "deploy" / "helm"
TOOLS = ROOT / ".tools" / "helm"
KUBERNETES = ("1.33", "1.35", "1.37")
DIGEST = "sha256:" + "0" * 64
USER = 65532
TOKEN = "scrypt$0a1b2c3d$MDEyMzQ1Njc4OWFiY2RlZg==$MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="  # of docs/operators.md

if not (TOOLS / "helm").exists():
    if "helm" in os.environ.get("MUSTER_REQUIRE", "").split(","):
        pytest.fail("there is no .tools/helm: run deploy/setup/helm.sh")
    pytest.skip("there is no .tools/helm (deploy/setup/helm.sh makes it)", allow_module_level=True)

DEPLOYMENT = {"chain_id": 8453, "block": 25_000_000, "contracts": {"StakeManager": "0x" + "11" * 20}}
POOL: dict[str, Any] = {
    "image": {
        "services": {"repository": "registry.example/muster/services", "tag": "0.1.0"},
        "compute": {"repository": "registry.example/muster/compute", "digest": DIGEST},
    },
    "pool": {"id": 7, "publicUrl": "https://pool.example", "run": "main"},
    "deployment": DEPLOYMENT,
    "chain": {"urlSecret": {"name": "chain"}},
    "redis": {"passwordSecret": {"name": "redis"}},
    "discovery": {"publicUrl": "https://discovery.example", "keySecret": {"name": "discovery"}},
    "orchestrator": {"keySecret": {"name": "orchestrator"}},
    "validator": {"keySecret": {"name": "validator"}},
}
WORKER: dict[str, Any] = {
    "image": {"repository": "registry.example/muster/worker", "tag": "0.1.0"},
    "pool": {"id": 7, "discovery": ["https://discovery.example#0x52908400098527886E0F7030069857D2E4169EE7"]},
    "deployment": DEPLOYMENT,
    "chain": {"urlSecret": {"name": "chain"}},
    "keysSecret": "workers",
}
BASE = {"muster-pool": POOL, "muster-worker": WORKER}
TRAINING: dict[str, Any] = {
    "trainer": {"enabled": True, "keySecret": {"name": "publisher"}, "base": {"claim": "base"}, "gpus": 1},
    "relay": {"enabled": True, "publicUrl": "https://relay.example"},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "least": ("muster-pool", {}),
    "everything": (
        "muster-pool",
        {
            **TRAINING,
            "trustedProxies": ["10.0.0.0/8"],
            "imagePullSecrets": [{"name": "registry"}],
            "orchestrator": {
                "settings": {
                    "requirements": {"min_gpus": 1, "min_gpu_memory_bytes": 24_000_000_000},
                    "run_groups": 1_048_576,
                    "upload_kept_s": 1.5,
                },
                "tokens": [{"name": "ada", "scope": "admin", "hash": TOKEN}],
                "discovery": ["https://other.example#0x52908400098527886E0F7030069857D2E4169EE7"],
                "nodeSelector": {"disk": "ssd"},
            },
            "trainer": {**TRAINING["trainer"], "settings": {"learning": {"optimiser": {"learning_rate": 1e-6}}}},
            "validator": {"gpus": 2, "settings": {"workers": 2}, "tolerations": [{"operator": "Exists"}]},
            "monitoring": {
                "serviceMonitor": {"enabled": True, "labels": {"release": "p"}},
                "rules": {"enabled": True},
                "dashboards": {"enabled": True, "labels": {"team": "ops"}},
            },
            "tracing": {
                "enabled": True,
                "sampleRatio": 0.1,
                "endpoint": "http://otel:4318",
                "headersSecret": {"name": "otel"},
            },
        },
    ),
    "serving": (
        "muster-pool",
        {"gateway": {"enabled": True, "publicUrl": "https://gateway.example", "keySecret": {"name": "gateway"}}},
    ),
    "replicas and a bucket": (
        "muster-pool",
        {
            "redis": {"bundled": False, "passwordSecret": {"name": ""}, "urlSecret": {"name": "redis-url"}},
            "discovery": {"replicas": 2},
            "orchestrator": {
                "replicas": 2,
                "sealingKeySecret": {"name": "sealing"},
                "bucket": {"name": "pool-7", "endpoint": "https://s3.example", "secret": {"name": "s3"}},
            },
            "sandbox": {"namespaces": False},
        },
    ),
    "shared volume, plain http": (
        "muster-pool",
        {
            "allowPlainHttp": True,
            "pool": {"publicUrl": "http://orchestrator.internal:8002"},
            "orchestrator": {
                "replicas": 3,
                "sealingKeySecret": {"name": "sealing"},
                "storage": {"accessMode": "ReadWriteMany", "storageClassName": "nfs"},
            },
        },
    ),
    "no discovery, no validator": (
        "muster-pool",
        {
            "discovery": {"enabled": False},
            "validator": {"enabled": False},
            "image": {"compute": {"repository": "", "digest": ""}},
            "orchestrator": {"discovery": ["https://other.example"]},
        },
    ),
    "maintenance": ("muster-pool", {**TRAINING, "maintenance": True}),
    "one worker": ("muster-worker", {}),
    "workers": (
        "muster-worker",
        {
            "replicas": 3,
            "gpus": 1,
            "settings": {"stop_grace_s": 90.5, "labels": {"site": "a"}, "most_file_bytes": 2_147_483_648},
            "networkPolicy": {"allow": ["10.0.0.5/32"]},
        },
    ),
}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(below))
    for key, value in above.items():
        result[key] = merged(result[key], value) if isinstance(value, dict) and key in result else value
    return result


def helm(command: str, chart: str, values: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    named = ["pool"] if command == "template" else []
    return subprocess.run(
        [str(TOOLS / "helm"), command, *named, str(CHARTS / chart), "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
    )


@cache
def rendered(case: str) -> str:
    chart, values = CASES[case]
    done = helm("template", chart, merged(BASE[chart], values))
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def objects(case: str) -> tuple[dict[str, Any], ...]:
    return tuple(each for each in yaml.load_all(rendered(case), Loader=yaml.CSafeLoader) if each)


def pods(case: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in objects(case):
        if each["kind"] in {"Deployment", "StatefulSet"}:
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


@pytest.mark.parametrize("case", CASES)
def test_charts_pass_helms_lint(case: str) -> None:
    chart, values = CASES[case]
    done = helm("lint", chart, merged(BASE[chart], values))
    assert done.returncode == 0, done.stdout + done.stderr


def validated(*files: Path) -> subprocess.CompletedProcess[str]:
    """Validates files against all versions of Kubernetes, in one process, whose start takes a second."""
    versions = [word for version in KUBERNETES for word in ("-k", version)]
    command = [str(TOOLS / "venv/bin/kubernetes-validate"), *versions, "--strict", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_the_schemas_of_kubernetes_accept_every_object_and_refuse_a_wrong_field(tmp_path: Path) -> None:
    foreign = {"ServiceMonitor", "PrometheusRule"}  # kinds of the Prometheus operator
    seen: set[str] = set()  # cases have many objects in common
    files = []
    for case in CASES:
        found = {json.dumps(each): each for each in objects(case) if each["kind"] not in foreign}
        files.append(tmp_path / f"{case}.yaml")
        files[-1].write_text("\n---\n".join(found.keys() - seen))
        seen |= found.keys()
    checked = validated(*files)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count(" passed for resource ") == len(seen) * len(KUBERNETES)

    first = copy.deepcopy(objects("least")[0])
    first["spec"]["podSelektor"] = {}
    (tmp_path / "wrong.yaml").write_text(json.dumps(first))
    checked = validated(tmp_path / "wrong.yaml")
    assert checked.returncode != 0
    assert checked.stdout.count(" did not validate for resource ") == len(KUBERNETES)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no pool": ("muster-pool", {"pool": {"id": None}}, r"/pool/id.*want integer"),
    "pool 0": ("muster-pool", {"pool": {"id": 0}}, r"/pool/id.*minimum"),
    "no URL": ("muster-pool", {"pool": {"publicUrl": ""}}, r"/pool/publicUrl.*minLength"),
    "no deployment": ("muster-pool", {"deployment": None}, r"deployment"),
    "misspelt": ("muster-pool", {"validater": {}}, r"additional properties 'validater'"),
    "unknown setting": ("muster-pool", {"orchestrator": {"settings": {"run_group": 1}}}, r"run_group"),
    "a setting of the chart": (
        "muster-pool",
        {"orchestrator": {"settings": {"port": 1}}},
        r"/orchestrator/settings'.*'port' not allowed",
    ),
    "a secret as value": (
        "muster-pool",
        {"discovery": {"settings": {"redis_url": "x"}}},
        r"settings'.*'redis_url' not allowed",
    ),
    "no image": ("muster-pool", {"image": {"services": {"repository": ""}}}, r"image.services.repository is missing"),
    "no tag": ("muster-pool", {"image": {"services": {"tag": ""}}}, r"image.services needs a tag or a digest"),
    "short digest": ("muster-pool", {"image": {"services": {"digest": "sha256:00"}}}, r"/image/services/digest"),
    "no chain": ("muster-pool", {"chain": {"urlSecret": {"name": ""}}}, r"/chain/urlSecret/name.*minLength"),
    "no password": ("muster-pool", {"redis": {"passwordSecret": {"name": ""}}}, r"redis.passwordSecret.name is miss"),
    "two Redis": ("muster-pool", {"redis": {"urlSecret": {"name": "x"}}}, r"bundled is true and redis.urlSecret.name"),
    "no Redis": ("muster-pool", {"redis": {"bundled": False}}, r"redis.urlSecret.name is missing"),
    "no key": ("muster-pool", {"validator": {"keySecret": {"name": ""}}}, r"validator.keySecret.name is missing"),
    "http": ("muster-pool", {"pool": {"publicUrl": "http://pool.example"}}, r"pool.publicUrl is http://.*allowPlain"),
    "no discovery": ("muster-pool", {"discovery": {"enabled": False}}, r"orchestrator.discovery is empty"),
    "discovery's URL": ("muster-pool", {"discovery": {"publicUrl": ""}}, r"discovery.publicUrl is missing"),
    "replicas on a volume": ("muster-pool", {"orchestrator": {"replicas": 2}}, r"orchestrator.replicas is above 1"),
    "no common key": ("muster-pool", {"orchestrator": {"bucket": {"name": "b"}}}, r"sealingKeySecret.name is missing"),
    "no run": ("muster-pool", {**TRAINING, "pool": {"run": ""}}, r"pool.run is missing"),
    "no base": ("muster-pool", {"trainer": {**TRAINING["trainer"], "base": {"claim": ""}}}, r"trainer.base.claim is m"),
    "no upstream": ("muster-pool", {"relay": TRAINING["relay"]}, r"relay.upstream is missing"),
    "gateway and trainer": (
        "muster-pool",
        {**TRAINING, "gateway": {"enabled": True, "keySecret": {"name": "g"}, "publicUrl": "https://g.example"}},
        r"a run serves clients or trains",
    ),
    "Redis without a tag": ("muster-pool", {"redis": {"image": "redis"}}, r"/redis/image.*match"),
    "no contracts": ("muster-pool", {"deployment": {"contracts": None}}, r"/deployment/contracts"),
    "worker's network": ("muster-worker", {"networkPolicy": {"allow": ["10.0.0.5/99"]}}, r"/networkPolicy/allow/0"),
    "gateway": ("muster-pool", {"gateway": {"enabled": True, "keySecret": {"name": "g"}}}, r"gateway.publicUrl is mis"),
    "token": ("muster-pool", {"orchestrator": {"tokens": [{"name": "a", "scope": "root", "hash": "x"}]}}, r"tokens/0"),
    "no collector": ("muster-pool", {"tracing": {"enabled": True}}, r"tracing.endpoint is missing"),
    "no memory": ("muster-pool", {"discovery": {"resources": {"limits": None}}}, r"/discovery/resources"),
    "worker's pool": ("muster-worker", {"pool": {"id": None}}, r"/pool/id.*want integer"),
    "worker's discovery": ("muster-worker", {"pool": {"discovery": []}}, r"/pool/discovery.*minItems"),
    "worker's keys": ("muster-worker", {"keysSecret": ""}, r"/keysSecret.*minLength"),
    "worker's http": ("muster-worker", {"pool": {"discovery": ["http://d.example"]}}, r"workers refuse http"),
    "worker's image": ("muster-worker", {"image": {"tag": ""}}, r"image needs a tag or a digest"),
    "worker's runtime": ("muster-worker", {"settings": {"runtime": "docker"}}, r"/settings'.*'runtime' not allowed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_missing_and_contradictory_values_are_refused_by_name(case: str) -> None:
    chart, values, words = REFUSED[case]
    done = helm("template", chart, merged(BASE[chart], values))
    assert done.returncode != 0, "helm accepted the values"
    assert re.search(words, done.stderr.replace("\n", " ")), done.stderr


@pytest.mark.parametrize("case", CASES)
def test_every_pod_has_few_rights_and_bounded_memory(case: str) -> None:
    chart, values = CASES[case]
    namespaces = values.get("sandbox", {}).get("namespaces", True)
    found = 0
    for name, pod in pods(case):
        sandboxed = chart == "muster-worker" or (name.endswith(("validator", "trainer")) and namespaces)
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == USER
        assert security["seccompProfile"]["type"] == ("Unconfined" if sandboxed else "RuntimeDefault")
        # Kubernetes refuses an unmasked /proc in the host's user namespace.
        assert (pod.get("hostUsers") is False) == (chart == "muster-worker")
        assert pod["automountServiceAccountToken"] is False
        # A Service called muster-orchestrator would set MUSTER_ORCHESTRATOR_PORT=tcp://…
        assert pod["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
        for container in pod["containers"]:
            found += 1
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in rights
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]
            assert "@sha256:" in container["image"] or ":" in container["image"].rpartition("/")[2]
    assert found


@pytest.mark.parametrize("case", CASES)
def test_config_maps_have_no_secret_and_charts_make_none(case: str) -> None:
    kinds = [each["kind"] for each in objects(case)]
    assert "Secret" not in kinds
    for each in objects(case):
        if each["kind"] == "ConfigMap" and "grafana_dashboard" not in each["metadata"]["labels"]:
            assert set(each["data"]) == {"deployment.json"}
            assert json.loads(each["data"]["deployment.json"]) == DEPLOYMENT
    for _, pod in pods(case):
        for container in pod["containers"]:
            for variable in container.get("env", []):
                if re.search(r"PASSWORD$|_KEY$|_URL$|_RPC$", variable["name"]) and "value" in variable:
                    assert re.match(r"https?://[\w.]+(:\d+)?$|redis://:\$\(REDIS_PASSWORD\)@", variable["value"])
    if "muster-worker" in CASES[case][0]:
        assert "Service" not in kinds


def test_maintenance_changes_only_what_the_pods_of_services_with_data_run() -> None:
    stopped = set()
    for case in ("everything", "serving"):
        chart, values = CASES[case]
        done = helm("template", chart, merged(BASE[chart], {**values, "maintenance": True}))
        assert done.returncode == 0, done.stderr
        idle = [each for each in yaml.safe_load_all(done.stdout) if each]
        for normal, other in zip(copy.deepcopy(objects(case)), idle, strict=True):
            if normal["kind"] in {"Deployment", "StatefulSet"}:
                containers = (each["spec"]["template"]["spec"]["containers"] for each in (normal, other))
                for running, sleeping in zip(*containers, strict=True):
                    if running != sleeping:
                        stopped.add(running["name"])
                        assert sleeping.pop("command") == ["sh", "-c", "trap exit TERM; sleep infinity & wait"]
                        for key in ("args", "startupProbe", "livenessProbe", "readinessProbe"):
                            running.pop(key, None)
            assert normal == other
    assert stopped == {"orchestrator", "validator", "trainer", "gateway"}


def test_a_worker_sees_its_own_key_only() -> None:
    ((_, pod),) = pods("workers")
    (container,) = pod["containers"]
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "keys"]
    assert {mount["subPathExpr"] for mount in mounts} == {"$(POD_NAME).keystore", "$(POD_NAME).password"}
    assert pod["terminationGracePeriodSeconds"] == 211


@pytest.mark.parametrize("case", CASES)
def test_variables_load_as_the_services_settings(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        monkeypatch.delenv(name)
    loaded = []
    for _, pod in pods(case):
        for container in pod["containers"]:
            values = {each["name"]: _value(each, tmp_path) for each in container.get("env", [])}
            services = {name.split("_")[1].lower() for name in values if name.startswith("MUSTER_")}
            with monkeypatch.context() as patch:
                for name, value in values.items():
                    patch.setenv(name, value)
                for service in services:
                    kind = settings_class(service)
                    known = {row.variable for row in kind.describe()}
                    known |= {f"{kind._variable(key)}_FILE" for key in kind._secrets()}
                    tables = {name.partition("__")[0] for name in known}
                    assert {name for name in values if name.startswith(kind._variable(""))} <= known | tables
                    settings = kind.load()
                    loaded.append(service)
                    if service in PLACES and service not in {"sandbox", "tracing"}:
                        assert settings.model_fields_set > {"deployment", "chain_url"}
    assert loaded


def _value(variable: Mapping[str, Any], folder: Path) -> str:
    """Returns a variable's value in the test; files of secrets are files in the folder."""
    if "value" not in variable:
        return "redis://redis.example:6379/0" if variable["name"].endswith("_REDIS_URL") else "secret"
    value = str(variable["value"]).replace("$(REDIS_PASSWORD)", "secret")
    if value.startswith("/run/muster/"):
        file = folder / value.removeprefix("/")
        if variable["name"].endswith("_DIRECTORY"):
            file.mkdir(parents=True, exist_ok=True)
            return str(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("https://rpc.example")
        return str(file)
    return value


@pytest.mark.parametrize("case", CASES)
def test_commands_exist_and_probes_ask_the_health_routes(case: str) -> None:
    for name, pod in pods(case):
        for container in pod["containers"]:
            probes = {key: container[key] for key in container if key.endswith("Probe")}
            paths = {probe["httpGet"]["path"] for probe in probes.values() if "httpGet" in probe}
            assert paths <= HEALTH_PATHS - {"/metrics"}
            if container["name"] == "redis":
                assert all("tcpSocket" in probe for probe in probes.values())
                continue
            if "command" in container and "args" not in container:
                assert case == "maintenance"
                assert not probes
                continue
            # The trainer has a port for metrics only, and nothing but itself to be ready for.
            assert probes or container["name"] == "trainer", name
            told = list(container["args"])
            mount(app, PARTS, told)
            done = CliRunner().invoke(app, [*told, "--help"])
            assert done.exit_code == 0, done.output
            ports = [port["containerPort"] for port in container.get("ports", [])]
            said = [each["value"] for each in container.get("env", []) if each["name"].endswith("_PORT")]
            said += [word.partition("=")[2] for word in told if word.startswith("--port=")]
            assert [str(port) for port in ports] == said


@pytest.mark.parametrize(
    ("chart", "place", "service"),
    [
        *(("muster-pool", each, each) for each in ("discovery", "orchestrator", "validator", "gateway", "trainer")),
        ("muster-worker", "", "worker"),
    ],
)
def test_the_schemas_know_every_setting_that_the_chart_does_not_set(chart: str, place: str, service: str) -> None:
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())["properties"]
    allowed = (schema[place]["properties"] if place else schema)["settings"]["properties"]
    templates = "".join(path.read_text() for path in (CHARTS / chart / "templates").iterdir())
    kind = settings_class(service)
    owned = {name for name in kind.model_fields if f"MUSTER_{service.upper()}_{name.upper()}," in templates}
    owned |= {name for name in kind.model_fields if f"- name: MUSTER_{service.upper()}_{name.upper()}\n" in templates}
    owned |= {"deployment", "keystore", "password_file", *kind._secrets(), *NOT_IN_A_POD.get(service, ())}
    assert list(allowed) == sorted(set(kind.model_fields) - owned)


NOT_IN_A_POD = {
    # Keys of other roles; the owner signs with them on another machine.
    "orchestrator": ("manager_keystore", "manager_password_file", "relayer_keystore", "relayer_password_file"),
    # Files that the chart does not mount.
    "validator": ("tokens", "policies", "vllm_python", "calibration"),
    # Of several processes.
    "trainer": ("mesh_timeout_s",),
    # Of tasks in Docker, and of loopback, which nothing else in the pod can reach.
    "worker": ("docker_host", "readable", "local_network", "allow_networks", "metrics_port"),
}


def test_the_alerts_in_the_chart_are_those_of_deploy_prometheus() -> None:
    (rule,) = [each for each in objects("everything") if each["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/muster.rules.yml").read_text())


def test_grafana_and_the_operator_find_dashboards_and_metrics() -> None:
    (found,) = [each for each in objects("everything") if "grafana_dashboard" in each["metadata"]["labels"]]
    assert found["metadata"]["labels"].items() >= {"grafana_dashboard": "1", "team": "ops"}.items()
    files = {path.name: path.read_text() for path in (ROOT / "deploy/compose/grafana/dashboards").glob("*.json")}
    assert found["data"] == files
    assert not [each for each in objects("least") if "grafana_dashboard" in each["metadata"]["labels"]]

    (monitor,) = [each for each in objects("everything") if each["kind"] == "ServiceMonitor"]
    services = {
        each["metadata"]["name"]: each["spec"]["ports"] for each in objects("everything") if each["kind"] == "Service"
    }
    ports = {port["name"] for named in services.values() for port in named}
    assert {each["port"] for each in monitor["spec"]["endpoints"]} == {"http", "metrics"} <= ports
    assert [name for name, each in services.items() if "metrics" in {port["name"] for port in each}] == ["pool-trainer"]


def test_a_missing_npm_skips_the_tests_unless_they_are_required(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for program in ("bash", "cat", "sha256sum", "cut", "dirname", "uname", "rm"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or "")
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "copy" / "deploy" / "setup").mkdir(parents=True)
    for name in ("helm.sh", "say.sh"):
        shutil.copy(ROOT / "deploy/setup" / name, tmp_path / "copy/deploy/setup" / name)
    (tmp_path / "copy/deploy/locks").mkdir()
    for name in ("kubernetes-validate.lock", "sbom.lock"):
        shutil.copy(ROOT / "deploy/locks" / name, tmp_path / "copy/deploy/locks")
    for required, code in (("", 0), ("redis,helm", 1)):
        done = subprocess.run(
            [str(tmp_path / "copy/deploy/setup/helm.sh")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PATH": str(tmp_path / "bin"), "MUSTER_REQUIRE": required},
        )
        assert done.returncode == code, done.stderr
        assert "no npm to fetch helm" in done.stdout + done.stderr
