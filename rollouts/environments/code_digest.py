"""Digest of the code of an installed package, for families that adapt environments of other libraries.

The digest is that of the lines `DIGEST  PATH`, which `sha256sum` prints for the package's files, sorted by path. It is
the same for a wheel, an archive and a checkout, because it names what is imported, not what was downloaded.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from rollouts.environments.errors import BadOptions

_MOST_FILES = 10_000


def code_digest(module: str) -> str:
    """Returns the SHA-256 of a package's files, or of a single module, without importing it.

    Raises:
        BadOptions: The module is not installed, or has more than 10,000 files.
    """
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # a parent package that is missing, or a name that is no module's
        spec = None
    if spec is None or spec.origin is None or "." in module:
        raise BadOptions(
            f"there is no installed package or module {module[:80]!r}",
            hint="install the package with this environment; name its top level, such as glossary",
        )
    file = Path(spec.origin)
    if spec.submodule_search_locations is None:
        files = {file.name: file}
    else:
        found = (path for path in file.parent.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        files = {path.relative_to(file.parent).as_posix(): path for path in found}
    if len(files) > _MOST_FILES:
        raise BadOptions(f"the package {module} has {len(files)} files; the limit is {_MOST_FILES}")
    lines = [f"{hashlib.sha256(files[name].read_bytes()).hexdigest()}  {name}\n" for name in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
