"""Finding environments: built-in ones, those of other packages, and errors for missing ones."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import JsonValue

from protocol.errors import MusterError
from rollouts.environments import load_environment
from rollouts.environments.errors import BadOptions, UnknownEnvironment, UnknownEnvironmentVersion
from rollouts.environments.registry import environment_names, find_family

PACKAGE = """
from rollouts.environments.arithmetic import ArithmeticEnvironment, ArithmeticOptions
from rollouts.environments.factory import Family
def build(version, options, sandboxes):
    return ArithmeticEnvironment(version, options)
family = Family(name="sums", version="3", summary="", options=ArithmeticOptions, build=build)
broken = Family(name="another", version="1", summary="", options=ArithmeticOptions, build=build)
nothing = 7
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a package that registers environments, as pip would."""
    (tmp_path / "muster_test_sums.py").write_text(PACKAGE)
    info = tmp_path / "muster_test_sums-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: muster-test-sums\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[muster.environments]\nsums = muster_test_sums:family\nletters = muster_test_sums:family\n"
        "misnamed = muster_test_sums:broken\nnothing = muster_test_sums:nothing\nmissing = muster_test_absent:family\n"
        "twice = muster_test_sums:family\nleaving = muster_test_leaving:family\n"
    )
    (tmp_path / "muster_test_leaving.py").write_text("raise SystemExit(0)")
    rival = tmp_path / "muster_test_rival-1.0.dist-info"
    rival.mkdir()
    (rival / "METADATA").write_text("Metadata-Version: 2.1\nName: muster-test-rival\nVersion: 1.0\n")
    (rival / "entry_points.txt").write_text("[muster.environments]\ntwice = muster_test_rival:family\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_newest_version_is_the_default() -> None:
    assert load_environment("letters").version == "1"


@pytest.mark.usefixtures("package")
def test_a_package_adds_an_environment_through_an_entry_point() -> None:
    found = load_environment("sums", version="3", options={"digits": 2})
    assert found.version.startswith("3+")
    assert found.prompt(0).text.endswith("=")


def test_the_environment_in_the_documentation_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()
    entry, source = re.findall(r"```(?:toml|python)\n(.*?)```", page.partition("## Custom environments")[2], re.DOTALL)
    (tmp_path / "doubles.py").write_text(source)
    info = tmp_path / "doubles-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doubles\nVersion: 1.0\n")
    registered = tomllib.loads(entry)["project"]["entry-points"]["muster.environments"]
    lines = [f"{name} = {value}" for name, value in registered.items()]
    (info / "entry_points.txt").write_text("\n".join(["[muster.environments]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = load_environment("doubles", version="1", options={"most": 50})
    prompt = environment.prompt(21)
    assert (environment.size(), prompt.text, environment.demonstration(prompt)) == (50, "2*21=", "42")
    assert [environment.score(prompt, "42", finished=finished).task for finished in (True, False)] == [1.0, 0.0]
    with pytest.raises(MusterError, match="from 0 to 49"):
        environment.prompt(50)


@pytest.mark.usefixtures("package")
def test_a_package_cannot_replace_a_built_in_family() -> None:
    assert load_environment("letters").prompt(0).text == "sort:9694="


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("misnamed", "not a Family of that name"),
        ("nothing", "not a Family"),
        ("missing", "can't be imported"),
        ("leaving", "can't be imported: SystemExit"),
        ("twice", "muster_test_rival:family of muster-test-rival"),
    ],
)
def test_a_package_that_registers_an_invalid_object_is_reported(name: str, said: str) -> None:
    with pytest.raises(UnknownEnvironment, match=said):
        load_environment(name)


@pytest.mark.parametrize(
    ("name", "version", "options", "error", "words"),
    [
        ("leters", None, {}, UnknownEnvironment, "did you mean letters"),
        ("zzz", None, {}, UnknownEnvironment, "known are: arithmetic"),
        ("verifiers", None, {}, UnknownEnvironment, "pip install ./integrations/verifiers"),
        ("openenv", None, {}, UnknownEnvironment, "--no-deps ./integrations/openenv openenv-core==0.3.0"),
        ("letters", "2", {}, UnknownEnvironmentVersion, "has no version '2' here, but 1"),
        ("letters", "1+0000000000000000", {}, UnknownEnvironmentVersion, "but 1 is installed"),
        ("arithmetic", None, {"digit": 3}, BadOptions, "its options are: operations, digits"),
        ("arithmetic", None, {"operations": "+"}, BadOptions, "write a JSON list, such as -o 'operations="),
        ("math", None, {}, BadOptions, "give -o path="),
        ("arithmetic", None, {"digits": 0}, BadOptions, "digits"),
        ("arithmetic", None, {"operations": ["/"]}, BadOptions, "operations"),
    ],
)
def test_an_invalid_choice_is_reported_with_a_reason(
    name: str, version: str | None, options: dict[str, JsonValue], error: type[MusterError], words: str
) -> None:
    with pytest.raises(error) as caught:
        load_environment(name, version=version, options=options)
    assert words in f"{caught.value.detail} {caught.value.hint}"


def test_options_are_part_of_the_version_unless_they_are_defaults() -> None:
    plain = load_environment("arithmetic", version="1", options={"digits": 3})
    other = load_environment("arithmetic", version="1", options={"digits": 4})
    assert plain.version == "1"
    assert other.version.startswith("1+")
    assert load_environment("arithmetic", version=other.version, options={"digits": 4}).version == other.version
    with pytest.raises(UnknownEnvironmentVersion):
        load_environment("arithmetic", version=other.version, options={"digits": 5})


def test_every_family_is_listed_with_its_summary() -> None:
    assert {"letters", "arithmetic"} <= set(environment_names())
    assert all(find_family(name).summary for name in environment_names())
