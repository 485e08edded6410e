"""The page's JavaScript modules: runs their tests in Node.js, and checks their source text."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.api.page import page_files
from protocol.identity.scopes import Scope
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.nodes import NodeState

HERE = Path(__file__).parent
MODULES = {name: file.body.decode() for name, file in page_files().items() if name.endswith(".mjs")}

FORBIDDEN = (
    r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|DOMParser|document\.write|srcdoc",
    r"\beval\b|new Function|setTimeout\(\s*[\"'`]|import\(",
    r"localStorage|indexedDB|document\.cookie",
    r"https?://(?!www\.w3\.org/2000/svg)",
    r"\.style\b|cssText|setAttribute\(\s*[\"']style",
)


@pytest.mark.needs_node
def test_the_javascript_tests_of_the_modules_pass() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node: `make tools` installs it")
    tests = sorted(str(path) for path in HERE.glob("*.test.mjs"))
    done = subprocess.run(
        [node, "--test", *tests], capture_output=True, text=True, timeout=120, check=False, env={"TZ": "UTC"}
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert int(re.findall(r"^# pass (\d+)", done.stdout, re.MULTILINE)[0]) >= 50
    assert re.search(r"^# (?:fail|cancelled|skipped|todo) [1-9]", done.stdout, re.MULTILINE) is None


@pytest.mark.parametrize("pattern", FORBIDDEN, ids=["markup", "code", "keeping", "elsewhere", "style"])
def test_no_module_creates_markup_or_code_from_text_stores_data_or_calls_other_hosts(pattern: str) -> None:
    assert [name for name, text in MODULES.items() if re.search(pattern, text)] == []


def test_the_token_is_named_in_the_entry_points_and_one_module_only() -> None:
    """The entry points read a token from storage, and one module sends it."""
    assert {name for name, text in MODULES.items() if re.search(r"\.token\b", text)} == {
        "core/api.mjs",
        "main.mjs",
        "me.mjs",
    }
    assert {name for name, text in MODULES.items() if "sessionStorage" in text} == {"main.mjs", "me.mjs"}


def test_every_imported_module_is_served() -> None:
    for name, text in MODULES.items():
        for wanted in re.findall(r"from \"(\.[^\"]+)\"", text):
            path = Path("/", name).parent / wanted
            assert str(path.resolve()).lstrip("/") in MODULES, (name, wanted)


def test_the_pages_names_match_the_protocols_enumerations() -> None:
    reasons = dict(re.findall(r"^  (\d+): \"([a-z ]+)\",$", MODULES["rows/reasons.mjs"], re.MULTILINE))
    assert reasons == {str(reason.value): reason.name.lower().replace("_", " ") for reason in ReasonCode}
    outcomes = re.findall(r"(\d): \"(\w+)\"", MODULES["rows/reasons.mjs"].split("REASONS")[0])
    assert outcomes == [(str(outcome.value), outcome.name.lower()) for outcome in Outcome]
    states = re.findall(r"\"(\w+)\"", MODULES["rows/nodes.mjs"].split("STATES = ")[1].split("]")[0])
    assert states == [state.value for state in NodeState]
    scopes = re.findall(r"\"(\w+)\"", MODULES["core/access.mjs"].split("SCOPES = ")[1].split("]")[0])
    assert scopes == [scope.value for scope in Scope]
