"""Builds the TypeScript client from the services' OpenAPI documents, and runs its tests in Node.js."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from discovery.app import build_discovery
from ledger.build import tools_directory
from protocol.errors import Unavailable
from protocol.identity.keys import Key
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import ManualClock
from tests.kit import discovery
from tests.kit.memory_ledger import MemoryLedger
from tests.kit.orchestrator import under_test

SOURCE = Path(__file__).parents[2] / "clients" / "typescript"
NEEDED = ("openapi-typescript", "typescript", "@noble/curves", "@noble/hashes", "@types/node")


@dataclass(frozen=True, slots=True)
class TypescriptClient:
    """The compiled client."""

    folder: Path
    documents: Mapping[str, Any]
    """OpenAPI documents from which the client's types were generated, by name of the service."""

    def test(self, *files: str, settings: Mapping[str, str]) -> int:
        """Runs compiled test files, and returns the number of passed tests; a failed or skipped one fails this test.

        Args:
            files: Names of the files in `test/`, without suffix.
            settings: Environment variables of the tests.
        """
        names = (f"dist/test/{name}.test.js" for name in files)
        output = _run(self.folder, "node", "--test", "--test-reporter=tap", *names, settings=settings)
        assert re.search(r"^# (?:fail|cancelled|skipped|todo) [1-9]", output, re.MULTILINE) is None, output
        return int(re.findall(r"^# pass (\d+)", output, re.MULTILINE)[0])


@pytest.fixture(scope="session")
def typescript_client(tmp_path_factory: pytest.TempPathFactory) -> TypescriptClient:
    """Generates the types and compiles the client. The compiler checks the types of all calls in strict mode."""
    modules = _modules()
    home = tmp_path_factory.mktemp("typescript")
    documents = _documents(home)
    for name, document in documents.items():
        (home / f"{name}.json").write_text(json.dumps(document))
    folder = home / "client"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("node_modules", "dist", "generated"))
    (folder / "node_modules").symlink_to(modules)
    _run(folder, "node", "generate.mjs", *(str(home / f"{name}.json") for name in ("orchestrator", "discovery")))
    _run(folder, "node", str(modules / "typescript" / "bin" / "tsc"))
    return TypescriptClient(folder, documents)


def _modules() -> Path:
    """Returns the folder of the npm packages that deploy/npm pins."""
    try:
        found = tools_directory() / "node_modules"
    except Unavailable as missing:
        pytest.skip(f"{missing.detail}: {missing.hint}")
    if shutil.which("node") is None or not all((found / name).is_dir() for name in NEEDED):
        pytest.skip("there is no node, or its packages are missing: `make tools` installs them")
    return found


def _documents(home: Path) -> dict[str, Any]:
    """Returns the OpenAPI documents of this code's services; the services need no connection for them."""
    nowhere, key = "redis://127.0.0.1:1/0", Key.generate()
    orchestrator = under_test(nowhere, ManualClock(), MemoryLedger(orchestrator=key.address), key, home / "secrets.key")
    other = build_discovery(
        discovery.settings(),
        key=discovery.SERVICE,
        pools=discovery.POOLS,
        redis=connect_redis(nowhere),
        ledger=discovery.SmallLedger(),
    )
    return {"orchestrator": orchestrator.app.openapi(), "discovery": other.openapi()}


def _run(folder: Path, *command: str, settings: Mapping[str, str] | None = None) -> str:
    environment = {"PATH": os.environ["PATH"], **(settings or {})}
    done = subprocess.run(
        ["timeout", "120", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout
