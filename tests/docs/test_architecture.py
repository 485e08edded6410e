"""Links and file paths in the developer documents exist, and their import rules hold."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if path.name != "CHANGELOG.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_exist(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


PACKAGES = [
    "protocol",
    "ledger",
    "discovery",
    "orchestrator",
    "gateway",
    "worker",
    "rollouts",
    "validator",
    "shardcast",
    "trainer",
    "cli",
]
FOLDERS = "|".join([*PACKAGES, "docs", "tests", "deploy", "benchmarks"])
OF_READERS = {"rollouts/STEP/", "capitals.py", "doubles.py"}
"""Paths that a page names and that are not in the repository: a run's folder, and a reader's own module."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "decisions"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_paths_named_in_the_docs_exist(page: Path) -> None:
    text = page.read_text()
    paths = set(re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", text)) - OF_READERS
    assert paths or page.name not in {"ARCHITECTURE.md", "CONTRIBUTING.md"}
    assert not [path for path in paths if not (ROOT / path).exists()]
    assert not set(re.findall(r"`([\w-]+\.py)`", text)) - _module_names() - OF_READERS


@cache
def _module_names() -> frozenset[str]:
    return frozenset(path.name for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*.py"))


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    assert not [path.name for path in folder.glob("0*.md") if f"({path.name})" not in index]


def test_tests_import_helpers_from_the_kit_or_their_own_folder() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
        for module in re.findall(r"^from (tests[\w.]*) import", path.read_text(), flags=re.MULTILINE)
        if module.rpartition(".")[0] not in {"tests.kit", own := ".".join(path.parent.relative_to(ROOT).parts)}
        and module not in {"tests.kit", own}
    ]
    assert not wrong, "move shared helpers to tests/kit"


ORDERED_INSIDE = {"trainer/run"}
"""Folders below a package whose modules and sub-folders a layers contract of their own in `pyproject.toml` orders."""


def test_nested_folders_do_not_import_each_other() -> None:
    """The layers in `pyproject.toml` order the folders and modules directly in a package; this orders the others."""
    imports = {
        (str(Path(path).parent), _folder_of(name))
        for path, used in _names_of_modules().items()
        for name in used
        if name.partition(".")[0] in PACKAGES
    }
    nested = {(own, other) for own, other in imports if own != other and "/" in own and "/" in other}
    assert not {pair for pair in nested if pair[::-1] in nested and pair[0] < pair[1]} - {
        (own, other) for own, other in nested if own in ORDERED_INSIDE and other.startswith(f"{own}/")
    }


@cache
def _folder_of(name: str) -> str:
    """Returns the folder of a dotted name: the package itself, or the one that contains its module or object."""
    path = Path(*name.split("."))
    while not (ROOT / path).is_dir():
        path = path.parent
    return str(path)


COMMANDS = {"cli/": "commands and the devnet, in processes of their own"}
TASKS = {"rollouts/": "tasks, engines and sandboxes, in processes of their own"}

SEAMS: dict[str, tuple[set[str], dict[str, str]]] = {
    "random numbers come from protocol.runtime.randomness": (
        {"random", "secrets", "uuid", "os.urandom"},
        {
            "protocol/runtime/randomness.py": "the seam",
            "protocol/http/tokens.py": "access tokens",
            "orchestrator/storage/signed_urls.py": "key of signed URLs",
            "orchestrator/store/sessions.py": "one-time codes and tokens of sessions",
            "orchestrator/store/webhooks.py": "keys of webhook signatures",
            "worker/state.py": "HMAC key of fingerprints",
            "worker/tasks/container_runner.py": "access tokens of tasks",
            "cli/keys.py": "passwords",
            "cli/devnet/": "passwords, network ids and bytes of attacks",
            "rollouts/sandbox/": "user ids of sandboxes; `inside/` imports the standard library only",
        },
    ),
    "blocking calls run through protocol.runtime.threads": (
        {"asyncio.to_thread", ".run_in_executor", "concurrent.futures", "threading.Thread", "multiprocessing"},
        {
            "protocol/runtime/threads.py": "the seam",
            "shardcast/download/transfer.py": "blocking sockets, one thread per connection",
            "trainer/run/learner/thread.py": "one heap for all learning steps",
            "trainer/endpoint.py": "an evaluation, in a command's process",
            "validator/doctor/throughput.py": "scores the answers of a measurement, in a command's process",
            "protocol/runtime/tracing.py": "the last export of a process that ends, within a time limit",
            "trainer/distributed/leader.py": "heartbeats of the mesh while the learner computes",
            **COMMANDS,
            **TASKS,
        },
    ),
    "services construct HTTP clients with a transport argument": (
        {"httpx.AsyncClient() without transport", "httpx.Client() without transport", "aiohttp.ClientSession()"},
        {
            "ledger/rpc/connection.py": "has a transport argument, which replaces aiohttp",
            "shardcast/download/peer_client.py": "shardcast speaks to peers over real sockets",
            "worker/doctor/network.py": "measures a real connection",
            "ledger/devchain/process.py": "chain in a process of its own",
            "cli/devnet/": "services in processes of their own",
        },
    ),
    "time is read from protocol.runtime.clock": (
        {"time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.sleep"}
        | {"datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today"},
        {
            "protocol/runtime/clock.py": "the seam",
            "orchestrator/storage/receiver.py": "compares with the times of files",
            "validator/examination/scoring.py": "runs in the examiner's process",
            "worker/runtime/keeper.py": "a process of its own",
            "worker/runtime/process.py": "waits for a process",
            **COMMANDS,
            **TASKS,
        },
    ),
    "only tests and simulations replace randomness and threads": (
        {"protocol.runtime.randomness.seeded", "protocol.runtime.threads.replaced_runner"},
        {},
    ),
}
"""Names that only the listed modules and folders may use, each with the reason (docs/decisions/0077)."""


@pytest.mark.parametrize("rule", SEAMS)
def test_seams_of_the_simulation_hold(rule: str) -> None:
    names, allowed = SEAMS[rule]
    users = [path for path, used in _names_of_modules().items() if names & used]
    assert not [path for path in users if not path.startswith(tuple(allowed))], rule
    assert not [place for place in allowed if not any(path.startswith(place) for path in users)], "no longer needed"


@cache
def _names_of_modules() -> dict[str, frozenset[str]]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)): frozenset(_names_in(ast.parse(path.read_text()))) for path in paths}


def _names_in(tree: ast.Module) -> set[str]:
    """Returns imported modules and objects, dotted names, `.attribute` of anything, and `name()` of calls."""
    found: set[str] = set()
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                found.add(name.name)
                top = name.name.partition(".")[0]
                imported[name.asname or top] = name.name if name.asname else top
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                imported[name.asname or name.name] = f"{node.module}.{name.name}"
            found |= {str(node.module), *(f"{node.module}.{name.name}" for name in node.names)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found |= {f".{node.attr}", _dotted(node, imported)}
        elif isinstance(node, ast.Call):
            function = _dotted(node.func, imported)
            has_transport = any(keyword.arg == "transport" for keyword in node.keywords)
            found |= {f"{function}()", *([] if has_transport else [f"{function}() without transport"])}
    return found


def _dotted(node: ast.AST, imported: dict[str, str]) -> str:
    """Returns the full name of an expression such as `datetime.now`; empty if it has none."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, "")
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, imported)}.{node.attr}"
    return ""
