"""Compiles the contracts into the committed artifacts: `python -m ledger.build [--check]`.

Compilation needs Node.js and the pinned npm packages of `deploy/npm` in `.tools/node_modules`. The running services
need neither.

The output depends only on the sources and the pinned versions: it contains no paths, times or metadata hash.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ledger.artifacts import ARTIFACTS, Contract, source_hash, sources
from protocol.errors import InvalidInput, Unavailable

SOLC: Final = "0.8.37"
OPENZEPPELIN: Final = "5.7.0"
SIZE_LIMIT: Final = 24_576
"""Maximum bytes of code of a contract on a chain (EIP-170)."""

SETTINGS: Final[dict[str, Any]] = {
    # More runs make calls cheaper and the code larger. With 200 runs ComputePools is already close to the size limit.
    "optimizer": {"enabled": True, "runs": 200},
    "viaIR": True,
    "evmVersion": "cancun",
    # The bytecode has no metadata hash, so that a changed comment in a source does not change the bytecode.
    "metadata": {"bytecodeHash": "none", "appendCBOR": False},
    "outputSelection": {
        "*": {"": ["ast"]},
        **{
            f"{contract.value}.sol": {
                contract.value: [
                    "abi",
                    "evm.bytecode.object",
                    "evm.deployedBytecode.object",
                    "evm.deployedBytecode.immutableReferences",
                ]
            }
            for contract in Contract
        },
    },
}

_IMPORT = re.compile(r'^import [^;]*?"([^"]+)";', re.MULTILINE)
_PROGRAM = """
const solc = require('solc');
const input = require('fs').readFileSync(0, 'utf8');
process.stdout.write(JSON.stringify({version: solc.version(), output: JSON.parse(solc.compile(input))}));
"""


def tools_directory() -> Path:
    """Returns the directory of the npm packages: `MUSTER_TOOLS`, or `.tools` at the root of the repository.

    Raises:
        Unavailable: The directory has no `node_modules`.
    """
    root = Path(os.environ.get("MUSTER_TOOLS") or Path(__file__).resolve().parent.parent / ".tools")
    if not (root / "node_modules").is_dir():
        raise Unavailable(
            f"{root} has no node_modules",
            hint="run `npm ci` with deploy/npm/package.json there, or set MUSTER_TOOLS",
            code="tools-missing",
            retryable=False,
        )
    return root


def compile_contracts() -> dict[str, dict[str, Any]]:
    """Compiles every contract and returns the artifacts by name, as JSON objects.

    Raises:
        Unavailable: The tools are missing, or not of the pinned versions.
        InvalidInput: The sources do not compile, the compiler warns, or a contract is too large for a chain.
    """
    modules = tools_directory() / "node_modules"
    pinned = json.loads((modules / "@openzeppelin" / "contracts" / "package.json").read_text(encoding="utf-8"))
    own = sources()
    result = _run_solc(modules, _with_imports(own, modules))
    if pinned["version"] != OPENZEPPELIN or not result["version"].startswith(f"{SOLC}+"):
        raise Unavailable(
            f"found OpenZeppelin {pinned['version']} and solc {result['version']}, need {OPENZEPPELIN} and {SOLC}",
            hint="run `npm ci` with deploy/npm/package.json again",
            code="tools-wrong",
            retryable=False,
        )
    complaints = [error["formattedMessage"] for error in result["output"].get("errors", [])]
    if complaints:
        raise InvalidInput("\n".join(complaints), hint="correct the sources", code="does-not-compile")
    digest = source_hash(own)
    names = dict(_immutables(result["output"]["sources"]))
    return {
        contract.value: _artifact(contract, result["output"]["contracts"], names, result["version"], digest)
        for contract in Contract
    }


def render(artifact: dict[str, Any]) -> str:
    """Returns the text of an artifact's file."""
    return json.dumps(artifact, indent=1, sort_keys=True) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Writes the artifacts, or with `--check` reports which artifacts are out of date; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ledger.build", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if an artifact is out of date")
    options = parser.parse_args(arguments)
    stale = 0
    for name, artifact in compile_contracts().items():
        path = Path(str(ARTIFACTS / f"{name}.json"))
        text = render(artifact)
        fresh = path.is_file() and path.read_text(encoding="utf-8") == text
        stale += not fresh
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{name:<16} {artifact['deployedSize']:>6} bytes  {'same' if fresh else 'changed'}\n")
    return 1 if options.check and stale else 0


def _immutables(tree: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - JSON of the compiler
    """Yields the id and name of each immutable variable in the compiler's syntax trees."""
    if isinstance(tree, dict) and tree.get("nodeType") == "VariableDeclaration" and tree["mutability"] == "immutable":
        yield str(tree["id"]), tree["name"]
    elif isinstance(tree, (dict, list)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _immutables(part)


def _artifact(
    contract: Contract, compiled: dict[str, Any], names: dict[str, str], compiler: str, digest: str
) -> dict[str, Any]:
    output = compiled[f"{contract.value}.sol"][contract.value]
    references = output["evm"]["deployedBytecode"]["immutableReferences"]
    size = len(output["evm"]["deployedBytecode"]["object"]) // 2
    if size > SIZE_LIMIT:
        raise InvalidInput(f"{contract.value} has {size} bytes; the limit is {SIZE_LIMIT}", code="contract-too-large")
    return {
        "contract": contract.value,
        "compiler": compiler,
        "openzeppelin": OPENZEPPELIN,
        "sourceHash": digest,
        "deployedSize": size,
        "immutables": {names[key]: sorted(place["start"] for place in places) for key, places in references.items()},
        "abi": output["abi"],
        "bytecode": "0x" + output["evm"]["bytecode"]["object"],
    }


def _with_imports(own: dict[str, str], modules: Path) -> dict[str, str]:
    """Adds every OpenZeppelin file that the sources import, so that the compiler reads no files itself."""
    texts = dict(own)
    waiting = list(own)
    while waiting:
        path = waiting.pop()
        for target in _IMPORT.findall(texts[path]):
            name = target if not target.startswith(".") else os.path.normpath(f"{Path(path).parent}/{target}")
            if name not in texts:
                texts[name] = (modules / name).read_text(encoding="utf-8")
                waiting.append(name)
    return texts


def _run_solc(modules: Path, texts: dict[str, str]) -> dict[str, Any]:
    request = {
        "language": "Solidity",
        "sources": {path: {"content": text} for path, text in sorted(texts.items())},
        "settings": SETTINGS,
    }
    process = subprocess.run(
        ["node", "-e", _PROGRAM],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NODE_PATH": str(modules)},
    )
    if process.returncode != 0:
        raise Unavailable(
            f"solc did not run: {process.stderr[-2000:]}", hint="check Node.js: `node --version`", code="no-compiler"
        )
    result: dict[str, Any] = json.loads(process.stdout)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
