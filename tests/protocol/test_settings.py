"""Settings come from flags, environment and a file, in this order of precedence.

Errors name the source and never show secrets.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from protocol.errors import NotFound
from protocol.runtime.settings import InvalidSetting, Settings, default_directory


class Limits(BaseModel, extra="forbid"):
    count: int = 5
    per: timedelta = timedelta(seconds=10)


class ExampleSettings(Settings):
    service: ClassVar[str] = "shardcast.relay"

    port: int = Field(8000, ge=0, le=65535, description="Where to listen")
    redis_url: str = Field("redis://127.0.0.1", description="Where Redis is")
    password: SecretStr | None = Field(None, description="Of Redis")
    limits: Limits = Limits()
    proxies: list[str] = []


class NeedySettings(Settings):
    service: ClassVar[str] = "needy"

    chain_url: str = Field(description="The ledger's JSON-RPC")


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CONFIG", raising=False)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "muster.toml"
    path.write_text(text)
    return path


def test_defaults_apply_without_other_sources() -> None:
    assert ExampleSettings.load().port == 8000


def test_flags_override_environment_file_and_defaults_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, "[shardcast.relay]\nport = 1\n")
    assert ExampleSettings.load(file=file).port == 1
    monkeypatch.setenv("MUSTER_SHARDCAST_RELAY_PORT", "2")
    assert ExampleSettings.load(file=file).port == 2
    assert ExampleSettings.load(file=file, flags={"port": 3}).port == 3
    assert ExampleSettings.load(file=file, flags={"port": None}).port == 2


def test_tables_are_merged_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, '[shardcast.relay.limits]\ncount = 1\nper = "PT3S"\n')
    monkeypatch.setenv("MUSTER_SHARDCAST_RELAY_LIMITS__COUNT", "2")
    assert ExampleSettings.load(file=file).limits == Limits(count=2, per=timedelta(seconds=3))


def test_a_list_in_a_variable_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SHARDCAST_RELAY_PROXIES", '["10.0.0.0/8"]')
    assert ExampleSettings.load().proxies == ["10.0.0.0/8"]
    monkeypatch.setenv("MUSTER_SHARDCAST_RELAY_PROXIES", "10.0.0.0/8")
    with pytest.raises(InvalidSetting, match="proxies"):
        ExampleSettings.load()


def test_the_settings_file_can_be_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_CONFIG", str(written(tmp_path, "[shardcast.relay]\nport = 7\n")))
    assert ExampleSettings.load().port == 7


def test_variables_without_the_prefix_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "1")
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
    assert ExampleSettings.load() == ExampleSettings()


def test_a_path_setting_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithPath(Settings):
        service: ClassVar[str] = "pathy"

        key_file: Path | None = None

    monkeypatch.setenv("MUSTER_PATHY_KEY_FILE", "/somewhere")
    assert WithPath.load().key_file == Path("/somewhere")


def test_a_secret_can_be_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    file = written(tmp_path, f'[shardcast.relay]\npassword_file = "{secret}"\n')
    settings = ExampleSettings.load(file=file)
    assert settings.password is not None
    assert settings.password.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(settings)
    monkeypatch.setenv("MUSTER_SHARDCAST_RELAY_PASSWORD_FILE", str(secret))
    assert ExampleSettings.load().password == settings.password


WRONG_FILES = {
    "unknown key": ("[shardcast.relay]\nprot = 1\n", ["muster.toml: shardcast.relay.prot", "did you mean port"]),
    "unknown nested key": ("[shardcast.relay.limits]\ncuont = 1\n", ["shardcast.relay.limits.cuont"]),
    "beyond a limit": ("[shardcast.relay]\nport = 70000\n", ["muster.toml: shardcast.relay.port", "65535", "70000"]),
    "another type": ('[shardcast.relay]\nport = "many"\n', ["shardcast.relay.port", "integer", "many"]),
    "no table": ("[shardcast]\nrelay = 1\n", ["shardcast.relay is not a table"]),
    "not TOML": ("[shardcast.relay\n", ["muster.toml is not TOML", "line 1"]),
    "secret twice": ('[shardcast.relay]\npassword = "hunter2"\npassword_file = "x"\n', ["given twice"]),
    "secret file missing": ('[shardcast.relay]\npassword_file = "/nowhere/x"\n', ["/nowhere/x", "No such file"]),
    "secret of another type": ('[shardcast.relay]\npassword = ["hunter2"]\n', ["shardcast.relay.password"]),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_an_invalid_settings_file_is_reported_with_key_and_reason(name: str, tmp_path: Path) -> None:
    text, words = WRONG_FILES[name]
    with pytest.raises(InvalidSetting) as caught:
        ExampleSettings.load(file=written(tmp_path, text))
    said = f"{caught.value.detail} {caught.value.hint}"
    assert all(word in said for word in words), said
    assert "hunter2" not in said


def test_an_invalid_variable_or_flag_is_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSetting, match="--port"):
        ExampleSettings.load(flags={"port": -1})
    monkeypatch.setenv("MUSTER_SHARDCAST_RELAY_PORT", "x")
    with pytest.raises(InvalidSetting, match="MUSTER_SHARDCAST_RELAY_PORT"):
        ExampleSettings.load()


def test_a_missing_required_setting_is_reported_with_its_variable() -> None:
    with pytest.raises(InvalidSetting, match=r"needy\.chain_url is required \(or MUSTER_NEEDY_CHAIN_URL\)"):
        NeedySettings.load()


def test_a_named_settings_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        ExampleSettings.load(file=tmp_path / "none.toml")


def test_a_nested_table_is_described_setting_by_setting_with_its_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {row.key: row for row in ExampleSettings.describe()}
    assert (rows["limits.count"].kind, rows["limits.count"].default) == ("integer", "5")
    monkeypatch.setenv(rows["limits.count"].variable, "7")
    assert ExampleSettings.load().limits.count == 7


def test_a_secrets_default_is_not_shown() -> None:
    class Sealed(Settings):
        service: ClassVar[str] = "sealed"
        url: SecretStr = SecretStr("redis://:hunter2@127.0.0.1")
        open_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")

    row, shown = Sealed.describe()
    assert shown.default == "redis://127.0.0.1:6379/0"
    assert (row.kind, row.default) == ("secret text", "(secret)")
    assert "hunter2" not in str(row)


def test_every_setting_has_a_description() -> None:
    rows = {row.key: row for row in ExampleSettings.describe()}
    assert rows["port"].variable == "MUSTER_SHARDCAST_RELAY_PORT"
    assert (rows["redis_url"].flag, rows["redis_url"].default) == ("--redis-url", "redis://127.0.0.1")
    assert (rows["port"].kind, rows["port"].description, rows["port"].required) == (
        "integer, 0 to 65535",
        "Where to listen",
        False,
    )
    (needed,) = NeedySettings.describe()
    assert (needed.required, needed.default) == (True, "")


class PathySettings(Settings):
    service: ClassVar[str] = "paths"

    class Table(BaseModel):
        model_config = ConfigDict(extra="forbid")

        file: Path | None = None

    one: Path = Path("/default")
    maybe: Path | None = None
    several: tuple[Path, ...] = ()
    table: Table = Table()
    text: str = ""
    secret: SecretStr | None = None


def test_relative_paths_start_from_the_file_or_else_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "s").write_text("hunter2")
    file = written(
        folder,
        '[paths]\none = "a"\nmaybe = "~/b"\nseveral = ["c", "/d"]\ntext = "e"\nsecret_file = "s"\n'
        '[paths.table]\nfile = "f"\n',
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/x")
    found = PathySettings.load(file=Path("etc/muster.toml"))
    assert (found.one, found.maybe, found.table.file) == (folder / "a", Path("/home/x/b"), folder / "f")
    assert (found.several, found.text) == ((folder / "c", Path("/d")), "e")
    assert found.secret is not None
    assert found.secret.get_secret_value() == "hunter2"
    monkeypatch.setenv("MUSTER_PATHS_SEVERAL", '["c", "~/d"]')
    said = PathySettings.load(file=file, flags={"one": Path("a")})
    assert (said.one, said.several) == (Path("a"), (Path("c"), Path("/home/x/d")))


def test_settings_and_commands_find_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    assert ExampleSettings.load().port == 8000
    (tmp_path / ".devnet").mkdir()
    written(tmp_path / ".devnet", "[shardcast.relay]\nport = 3\n")
    assert ExampleSettings.load().port == 3
    written(tmp_path, "[shardcast.relay]\nport = 4\n")
    assert ExampleSettings.load().port == 4


def test_the_default_directory_depends_on_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_directory("worker") == Path("/var/lib/muster/worker")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_directory("worker") == tmp_path / "muster" / "worker"
