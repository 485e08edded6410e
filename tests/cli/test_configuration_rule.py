"""One rule of configuration for all commands and services: sources, paths, unknown names, and `muster config show`."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from cli.configuration.command_tables import configure, tables_of
from cli.configuration.sections import SECTIONS, load_configuration
from cli.configuration.settings import PLACES, settings_class
from cli.lazy import mount
from cli.main import PARTS, app
from protocol.runtime.configuration_text import TABLES, ConfigurationFile
from protocol.runtime.setting_descriptions import variable_of
from protocol.runtime.settings import InvalidSetting
from tests.kit.devnet import run_muster

ALL = [*SECTIONS, *PLACES]
NOT_CONFIGURED = {
    "env list",
    "files",
    "gateway verifier",
    "serve",
    "settings",
    "token hash",
    "token new",
    "trainer export",
    "trainer sft",
    "trainer try",
    "validator calibrate",
    "validator numerics",
    "version",
    "work reasons",
    "worker init",
    "worker upgrade",
}
"""Commands that read no configuration file."""


def commands() -> dict[str, Any]:
    """Returns every command by its name."""
    mount(app, PARTS, [], every=True)
    configure(app)

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield " ".join(words), command
            return
        for name, inner in command.commands.items():
            yield from walk(inner, (*words, name))

    return dict(walk(typer.main.get_command(app), ()))


COMMANDS = commands()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MUSTER_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, text: str, name: str = "muster.toml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_every_command_says_which_tables_it_reads() -> None:
    for name, command in COMMANDS.items():
        tables = tables_of(command.callback)
        assert bool(tables) is (name not in NOT_CONFIGURED), name
        assert set(tables) <= set(ALL), name
        parameters = inspect.signature(inspect.unwrap(command.callback)).parameters.values()
        if "ConfigOption" in {each.annotation for each in parameters}:
            assert tables, f"{name} has --config, so it must name its tables with `reads`"
    assert set(ALL) == set(TABLES)


@pytest.mark.parametrize("name", sorted(NOT_CONFIGURED))
def test_a_command_without_configuration_refuses_the_option(folder: Path, name: str) -> None:
    broken = written(folder, "[chain")  # the default file, which such a command does not read
    said = run_muster("--config", str(broken), *name.split())
    assert said.code == 2
    words = " ".join(re.sub("[^!-~]", " ", said.err).split())
    assert f"`muster {name}` reads no configuration file: " in words
    assert ("after its name" in words) is (name in {"trainer sft", "trainer try"})


def test_a_broken_file_stops_only_commands_that_read_it(folder: Path) -> None:
    written(folder, "[pool]\nid = 0\n[worker]\npool_id = 3\n")
    assert run_muster("version").code == 0
    assert run_muster("work", "reasons").code == 0
    assert run_muster("config", "show", "sandbox").code == 0
    for words in (["keys", "list"], ["config"], ["config", "show", "pool"]):
        assert "pool.id" in run_muster(*words).err, words


@pytest.mark.parametrize("table", ALL)
def test_every_table_has_the_same_sources_and_refuses_misspelt_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    kind = settings_class(table)
    rows = {row.key: row for row in kind.describe()}
    key = next(iter(kind.model_fields))
    variable = variable_of(table, key)
    assert rows[key].variable == variable

    written(folder, f"[{table}]\n{key}x = 1\n", "deep/other.toml")
    with pytest.raises(InvalidSetting, match=rf"other.toml: {table}.{key}x is not a setting of {table}") as caught:
        kind.load(file=Path("deep/other.toml"))
    assert caught.value.hint == f"did you mean {key}?"
    monkeypatch.setenv(variable + "X", "1")
    with pytest.raises(InvalidSetting, match=f"{variable}X is not a setting") as caught:
        kind.explain()
    assert caught.value.hint == f"did you mean {variable}?"
    monkeypatch.delenv(variable + "X")
    monkeypatch.setenv(f"MUSTER_{table.upper()}_PORT_8001_TCP", "tcp://10.0.0.1")  # set by Kubernetes
    monkeypatch.setenv(f"MUSTER_{table.upper()}_KEY", "0x")  # read elsewhere

    fields = kind.model_fields.items()
    paths = [name for name, field in fields if Path in (field.annotation, *get_args(field.annotation))]
    lines = "\n".join(f'{name} = "below/{name}"' for name in paths)
    file = written(folder, f"\n[{table}]\n{lines}\n", "deep/other.toml")
    found = {one.key: one for one in kind.explain(file=Path("deep/other.toml"))[0]}
    assert set(found) == set(rows)
    for line, name in enumerate(paths, 3):
        shown = found[name]
        assert shown.source == f"{file}:{line}", name
        if "list" not in rows[name].kind:
            assert shown.value == str(folder / "deep" / "below" / name), name
    for name in [each for each in paths if "list" not in rows[each].kind][:1]:
        monkeypatch.setenv(variable_of(table, name), "elsewhere")
        found = {one.key: one for one in kind.explain(file=Path("deep/other.toml"))[0]}
        assert (found[name].value, found[name].source) == ("elsewhere", variable_of(table, name))


def test_a_variable_overrides_the_file_for_commands_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, '[pool]\nid = 3\n[chain]\nrpc = "http://a"\n[keys]\npassword_file = "p"\n')
    monkeypatch.setenv("MUSTER_POOL_ID", "4")
    monkeypatch.setenv("MUSTER_KEYS_DIRECTORY", "kept")
    monkeypatch.setenv("MUSTER_POOL_TOKEN", "a token, not a setting")
    read = load_configuration()
    assert (read.pool.id, read.chain.endpoint) == (4, "http://a")
    assert (read.keys.directory, read.keys.password_file) == (Path("kept"), folder / "p")
    monkeypatch.setenv("MUSTER_POOL_ID", "none")
    with pytest.raises(InvalidSetting, match="MUSTER_POOL_ID"):
        load_configuration()


def test_show_names_value_and_source_and_hides_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, "s3cret-in-a-file", "s")
    file = written(
        folder,
        """
[worker]
pool_id = 3
discovery = [
  "https://user:hunter2@d.example",
]
labels = { zone = "eu" }

[orchestrator]
public_url = "https://pool.example"
pool_id = 3
deployment = "d.json"
storage_secret_key = "hunter2"
redis_url_file = "s"
requirements.min_gpus = 2
tokens = [{ name = "me", scope = "admin", hash = "sha256:hunter2" }]
""",
    )
    monkeypatch.setenv("MUSTER_WORKER_RUNTIME", "process")
    said = run_muster("config", "show", "worker", "run", "--json")
    assert (said.code, "is required" in said.err) == (1, True)  # without a deployment the worker would not start
    rows = {row["setting"]: (row["value"], row["source"]) for row in json.loads(said.out)["settings"]}
    assert rows["worker.pool_id"] == ("3", f"{file}:3")
    assert rows["worker.discovery"] == ("https://(hidden)@d.example", f"{file}:4")
    assert rows["worker.labels"] == ("zone = eu", f"{file}:7")
    assert rows["worker.runtime"] == ("process", "MUSTER_WORKER_RUNTIME")
    assert rows["worker.stop_grace_s"] == ("60.0", "default")
    assert rows["worker.deployment"] == ("", "MISSING")
    said = run_muster("config", "show", "orchestrator", "--json")
    rows = {row["setting"]: (row["value"], row["source"]) for row in json.loads(said.out)["settings"]}
    assert rows["orchestrator.redis_url"] == ("(hidden)", f"{file}:14")
    assert rows["orchestrator.storage_secret_key"] == ("(hidden)", f"{file}:13")
    assert rows["orchestrator.requirements.min_gpus"] == ("2", f"{file}:15")
    assert rows["orchestrator.tokens"][0] == "(hidden)"
    assert rows["orchestrator.deployment"][0] == str(folder / "d.json")
    text = run_muster("--config", str(file), "config", "show", "pool", "tasks")
    assert (text.code, "chain.rpc" in text.out) == (0, True)
    for each in (said.out, said.err, text.out):
        assert not re.search("hunter2|s3cret", each)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["wroker"], "did you mean worker?"),
        (["worker", "rnu"], "did you mean worker run?"),
        (["pool"], ""),
        (["keys"], ""),
        (["stake"], "name one of"),
        (["version"], "options are all"),
    ],
)
def test_show_explains_a_name_that_it_does_not_know(words: list[str], hint: str) -> None:
    said = run_muster("config", "show", *words)
    assert (said.code == 0) is (hint == "")
    assert hint in said.err


def test_unknown_names_in_nested_tables_get_a_hint(folder: Path) -> None:
    written(
        folder,
        '[orchestrator]\npublic_url = "https://x"\npool_id = 1\ndeployment = "d"\nrequirements.min_gpu = 1\n',
    )
    _, fault = settings_class("orchestrator").explain()
    assert fault is not None
    assert "requirements.min_gpu is not a setting; did you mean min_gpus?" in fault.detail


def test_lines_are_found_in_every_way_of_writing(folder: Path) -> None:
    text = '''# [a]
[worker]
state = """
pool_id = 7
"""
"pool_id" = 1
labels.zone = "eu"
[validator] # comment
pool-id = 1
[trainer.learning]
rate = 1
'''
    file = ConfigurationFile.read(written(folder, text), own="a")
    places = {
        ("worker", "pool_id"): 6,
        ("worker", "labels"): 7,
        ("worker", "labels", "zone"): 7,
        ("validator", "pool-id"): 9,
        ("trainer", "learning"): 10,
        ("trainer", "learning", "rate"): 11,
        ("trainer", "learning", "other"): 10,
        ("worker", "nothing"): None,
    }
    for path, line in places.items():
        assert file.place(path) == str(file.path) + (f":{line}" if line else ""), path
