"""Entry point of `muster`: checks that Muster's packages are its own, then runs the command line.

Muster's packages have common names such as `protocol` and `worker`. A folder on Python's path, or another distribution
in the same environment, may have a package of the same name; Python would then import that one. This package has a name
that nobody else uses, so it runs before any package that could be replaced.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

PACKAGES = (
    "protocol",
    "ledger",
    "shardcast",
    "rollouts",
    "discovery",
    "orchestrator",
    "gateway",
    "worker",
    "validator",
    "trainer",
    "cli",
)
"""Names of Muster's import packages."""

EXIT_SHADOWED = 2

_HOME = Path(__file__).resolve().parents[1]


def main() -> None:
    """Runs `muster`; exits with 2 if another package has the name of one of Muster's."""
    avoid_needless_imports()
    if problem := replaced_package():
        sys.stderr.write(f"error: {problem[0]}\n  hint: {problem[1]}\n")
        sys.exit(EXIT_SHADOWED)
    from cli.completion.lookup import answer  # noqa: PLC0415 - the check must come first

    if answer():
        return
    from cli.main import main as run  # noqa: PLC0415 - takes 0.2 CPU seconds, and completion does not need it

    run()


def avoid_needless_imports() -> None:
    """Leaves out work that Python and libraries would do while the command's modules are imported.

    Each line saves 0.03 to 0.4 CPU seconds of a quick command. `cli.main` switches the garbage collector on again.
    """
    gc.disable()  # imports make hundreds of thousands of objects and hardly any garbage
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # else pydantic searches all distributions for plugins
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # httpx's own command; it would import rich and pygments
    leave_out_bls()


def leave_out_bls() -> None:
    """Replaces the BLS signatures that eth_keyfile imports for keystores of version 4.

    Importing them takes 0.4 CPU seconds in every command and service that uses the chain. Muster's keystores have
    version 3, and it refuses others (`protocol.identity.keystores`).
    """
    for module, name in (("py_ecc.bls", "G2ProofOfPossession"), ("py_ecc.bls12_381", "curve_order")):
        replacement = ModuleType(module)
        setattr(replacement, name, 0)
        sys.modules.setdefault(module, replacement)


def replaced_package() -> tuple[str, str] | None:
    """Finds a package of Muster that Python would import from another place, or whose files are another's.

    Returns:
        A description of the problem and a hint, or None.
    """
    for name in PACKAGES:
        found = PathFinder.find_spec(name)
        expected = _HOME / name
        if found is None or (found.origin is None and not _is_at(found.submodule_search_locations, expected)):
            return f"Muster's package `{name}` is missing at {expected}", "install Muster again"
        if found.origin is not None and Path(found.origin).resolve() != expected / "__init__.py":
            place = Path(found.origin)
            shadow = place.parent if place.name == "__init__.py" else place
            return (
                f"{shadow} hides Muster's package `{name}` at {expected}",
                "start muster in another folder, unset PYTHONPATH, or install Muster into an environment of its own",
            )
    if (overwritten := _overwritten_package()) is not None:
        return (
            f"another distribution has overwritten {overwritten / '__init__.py'}, a file of Muster",
            "install Muster into a virtual environment of its own, without the other distribution",
        )
    return None


def _is_at(locations: object, expected: Path) -> bool:
    """Returns whether a package without `__init__.py` is the expected folder."""
    return isinstance(locations, list) and [Path(each).resolve() for each in locations] == [expected]


def _overwritten_package() -> Path | None:
    """Returns a package whose `__init__.py` differs from the installer's record.

    None also for a checkout or an editable installation, which have no record of the packages.
    """
    for record in _HOME.glob("muster_network-*.dist-info/RECORD"):
        recorded = dict(line.split(",")[:2] for line in record.read_text().splitlines() if line.count(",") == 2)
        for name in PACKAGES:
            kind, _, wanted = recorded.get(f"{name}/__init__.py", "").partition("=")
            if kind != "sha256":
                continue
            digest = hashlib.sha256((_HOME / name / "__init__.py").read_bytes()).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != wanted:
                return _HOME / name
    return None
