"""Logs are structured and contain no secrets, at any depth and from any library."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from protocol.identity.keys import Key
from protocol.runtime.logs import REDACTED, configure_logs, redacted

KEY_HEX = "11" * 32


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    configure_logs(level="DEBUG", stream=stream)
    yield stream
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_log_line_is_json_with_time_level_and_fields(written: io.StringIO) -> None:
    structlog.get_logger("part").info("started", port=80)
    (line,) = lines(written)
    assert (line["event"], line["level"], line["port"], line["logger"]) == ("started", "info", 80, "part")
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize("logger", ['get_logger("part")', 'logging.getLogger("part")'])
def test_structlog_is_imported_and_configured_for_the_first_line(logger: str) -> None:
    script = f"""
import logging, sys
from protocol.runtime.logs import configure_logs, get_logger
logger = {logger}
configure_logs(level="INFO", json=True)
print("structlog" in sys.modules)
logger.debug("not logged")
logger.warning("token mst_0011aabb_hunter2hunter2")
print("structlog" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    line = json.loads(done.stderr)
    assert (line["event"], line["level"], line["logger"]) == (f"token {REDACTED}", "warning", "part")
    assert done.stdout.split() == ["False", "True"]


def test_libraries_log_through_the_same_formatter(written: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("odd %s", "http://u:hunter2@host/")
    (line,) = lines(written)
    assert line["logger"] == "uvicorn.error"
    assert "hunter2" not in line["event"]


def test_warnings_and_libraries_with_own_handlers_are_logged_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("chatty")
    library.addHandler(logging.StreamHandler())
    library.propagate = False
    stream, root = io.StringIO(), logging.getLogger()
    handlers = list(root.handlers)
    logging.captureWarnings(False)  # in case an earlier test enabled it
    try:
        configure_logs(level="INFO", stream=stream)
        library.warning("by the way")
        warnings.warn("this is old", DeprecationWarning, stacklevel=1)
    finally:
        logging.captureWarnings(False)
        root.handlers = handlers
        structlog.reset_defaults()
    assert [line["logger"] for line in lines(stream)] == ["chatty", "py.warnings"]
    assert "this is old" in lines(stream)[1]["event"]
    assert capsys.readouterr().err == ""


def test_http_libraries_do_not_log_urls(written: io.StringIO) -> None:
    logging.getLogger("httpx").info("GET https://store/x?X-Amz-Signature=abc")
    assert written.getvalue() == ""


SECRETS: list[tuple[str, dict[str, Any]]] = [
    ("hunter2", {"password": "hunter2"}),
    ("hunter2", {"redis_password": "hunter2"}),
    ("hunter2", {"task": {"env": {"API_KEY": "hunter2"}}}),
    ("hunter2", {"headers": {"Authorization": "hunter2"}}),
    ("hunter2", {"headers": {"X-Muster-Signature": "hunter2"}}),
    ("hunter2", {"cookie": ["hunter2"]}),
    ("hunter2", {"secrets": {"A": "hunter2"}}),
    ("hunter2", {"value": SecretStr("hunter2")}),
    ("hunter2", {"url": "redis://user:hunter2@host:6379/0"}),
    ("hunter2", {"url": "redis://:hunter2@host:6379/0"}),
    ("hunter2", {"url": "https://s3/x?X-Amz-Credential=a&X-Amz-Signature=hunter2&b=c"}),
    ("hunter2", {"url": "https://local/put?sig=hunter2"}),
    ("hunter2hunter2", {"note": "sent Authorization: Bearer hunter2hunter2"}),
    ("hunter2hunter2", {"note": "token mst_0011aabb_hunter2hunter2 refused"}),
    (KEY_HEX, {"private_key": KEY_HEX}),
    (KEY_HEX, {"node_key": "0x" + KEY_HEX}),
    (KEY_HEX, {"MUSTER_NODE_KEY": KEY_HEX}),
    ("1234", {"password": 1234}),
    ("hunter2", {"error": ValueError("can't reach redis://:hunter2@host")}),
    (KEY_HEX, {"key": Key(bytes.fromhex(KEY_HEX))}),
    ("\\x11", {"data": bytes.fromhex(KEY_HEX)}),
]


@pytest.mark.parametrize(("secret", "fields"), SECRETS)
@pytest.mark.parametrize("as_json", [True, False])
def test_a_secret_is_never_logged(secret: str, fields: dict[str, Any], as_json: bool, written: io.StringIO) -> None:
    configure_logs(level="DEBUG", stream=written, json=as_json)
    structlog.get_logger().info("event", **fields)
    assert "event" in written.getvalue()
    assert secret not in written.getvalue()


@pytest.mark.parametrize("as_json", [True, False])
def test_a_logged_traceback_contains_neither_secrets_nor_locals(as_json: bool, written: io.StringIO) -> None:
    configure_logs(level="DEBUG", stream=written, json=as_json)

    def connect(url: str, local: str) -> None:
        raise RuntimeError(f"no answer from {url}")

    try:
        connect("redis://:hunter2@host", "local" + "value")
    except RuntimeError:
        structlog.get_logger().exception("failed")
    text = written.getvalue()
    assert "no answer from" in text
    assert "hunter2" not in text
    assert "localvalue" not in text


def test_a_strangers_text_can_not_control_the_terminal(written: io.StringIO) -> None:
    """structlog itself escapes only texts with white space or quotes."""
    configure_logs(level="DEBUG", stream=written, json=False)
    evil = "\x1b]0;owned\x07\x9b2J\u202e"
    structlog.get_logger().warning("peer-lied", detail=evil, listed=[evil], parts={"a": evil})
    logging.getLogger("library").warning("it said %s", evil)

    def fail() -> None:
        raise ValueError(evil)

    try:
        fail()
    except ValueError:
        structlog.get_logger().exception("failed")
    text = re.sub(r"\x1b\[[0-9;]*m", "", written.getvalue())  # the colours of the formatter
    assert not set(text) & set(evil) - set("]0;owned2J")
    assert text.count("owned") == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", 512),
        ("max_tokens", 4),
        ("tokens_per_second", 1.5),
        ("work_key", 7),
        ("key", "muster:{1}:nodes"),
        ("sha256", KEY_HEX),
        ("step", None),
        ("url", "https://pool.example/v1?step=3"),
    ],
)
def test_a_value_that_is_no_secret_is_logged_unchanged(name: str, value: object) -> None:
    assert redacted(value, name=name) == value


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


@given(values)
def test_any_value_can_be_logged_without_the_secrets_inside(value: object) -> None:
    json.dumps(redacted({"anything": value}))
    assert redacted({"password": value})["password"] == (  # type: ignore[index]  # a mapping gives a mapping
        value if value is None or isinstance(value, bool) else REDACTED
    )


def test_a_recursive_value_is_truncated() -> None:
    bottomless: dict[str, object] = {}
    bottomless["again"] = bottomless
    assert "..." in json.dumps(redacted(bottomless))
