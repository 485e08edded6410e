"""Makes container images without a registry, from this machine's Python and shell.

The images also contain the shared libraries that these programs load.

`python -m cli.devnet.image hello` makes the image of the task `hello`. With the argument `rollouts` instead, the
command makes the image of the task `rollouts`, which also contains torch and Muster's code.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
from collections.abc import Iterable, Iterator
from importlib import metadata, resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import docker

from muster_network import PACKAGES
from protocol.runtime.shipped import shipped

TAG = "muster/python:local"
ROLLOUTS_TAG = "muster/rollouts:local"

_ROLLOUTS_RECIPE = "deploy/images/rollouts/Dockerfile"
_BASE = "muster/rollouts-base"
_ROLLOUTS_LOCKS = ("deploy/locks/rollouts.lock", "deploy/locks/torch-cpu.lock", "deploy/locks/reasoning-gym.lock")
_NOT_FOR_ROLLOUTS = {"docker", "ens", "web3"}
"""Packages that the lock has because Muster's services need them, and that the task does not import."""

_PROGRAMS = ("sh", "cat", "echo", "env", "id", "ls", "sleep", "true", "false", "touch", "head", "ln", "rm", "mkdir")
_LEFT_OUT = {"__pycache__", "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip"}
_LIBRARY = re.compile(r"^\t(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)
_ETC = {
    "etc/passwd": "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}


def make_image(
    client: docker.DockerClient, tag: str = TAG, *, packages: Iterable[Path] = (), programs: Iterable[str] = ()
) -> str:
    """Makes an image with Python and a few shell programs, and returns its tag.

    Without `packages`, the image has about 75 MB and is made in a few seconds.

    Args:
        client: Client of the local engine.
        tag: Name of the image.
        packages: Directories of Python packages to put on the path inside, under `/opt/packages`.
        programs: Further programs of this machine, such as `bwrap`.
    """
    reader, writer = os.pipe()
    failures: list[Exception] = []
    producer = threading.Thread(target=_produce, args=(writer, tuple(packages), (*_PROGRAMS, *programs), failures))
    producer.start()
    repository, _, version = tag.rpartition(":")
    try:
        with os.fdopen(reader, "rb") as archive:
            client.api.import_image_from_stream(
                archive, repository=repository, tag=version, changes=["ENV PYTHONPATH=/opt/packages", "CMD python3"]
            )
    finally:
        producer.join()
    if failures:
        client.images.remove(tag, force=True)
        raise failures[0]
    return tag


def make_rollouts_image(client: docker.DockerClient) -> str:
    """Makes the image of the task `rollouts` and returns its tag.

    The base image holds the packages installed on this machine (1.5 GB). Making it takes half a minute, so the function
    makes a new base image only if a file with locked package versions, or the version of Python, has changed. Muster's
    code is a layer on top of the base image (`deploy/images/rollouts/Dockerfile`).
    """
    lock = hashlib.sha256(b"".join(shipped(name).read_bytes() for name in _ROLLOUTS_LOCKS)).hexdigest()[:12]
    base = f"{_BASE}:{lock}-{sys.version_info.major}.{sys.version_info.minor}"
    if not client.images.list(name=base):
        for older in client.images.list(name=_BASE):
            client.images.remove(str(older.id), force=True)
        packages = [path for path in installed_packages(_ROLLOUTS_LOCKS) if path.name not in _NOT_FOR_ROLLOUTS]
        make_image(client, base, packages=packages)
    with TemporaryDirectory() as folder:
        dockerfile = write_build_context(Path(folder))
        client.images.build(
            path=folder,
            dockerfile=dockerfile,
            tag=ROLLOUTS_TAG,
            buildargs={"BASE": base, "INSTALL": "no"},
            network_mode="none",
            rm=True,
        )
    return ROLLOUTS_TAG


def write_build_context(folder: Path) -> str:
    """Copies all files that the rollout image's recipe needs, from a checkout or an installed wheel.

    Args:
        folder: An empty folder.

    Returns:
        The path of the Dockerfile in the folder.
    """
    recipe = shipped(_ROLLOUTS_RECIPE).read_text()
    (folder / _ROLLOUTS_RECIPE).parent.mkdir(parents=True)
    (folder / _ROLLOUTS_RECIPE).write_text(recipe)
    for copied in re.findall(r"^COPY (.+)$", recipe, re.MULTILINE):
        for name in copied.split()[:-1]:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if name in PACKAGES:
                shutil.copytree(
                    Path(str(resources.files(name))), target, ignore=shutil.ignore_patterns("__pycache__", "shipped")
                )
            else:
                shutil.copyfile(shipped(name), target)
    return _ROLLOUTS_RECIPE


def installed_packages(locks: Iterable[str]) -> list[Path]:
    """Returns the files and folders that the distributions in these locks installed on this machine.

    Args:
        locks: Names of shipped files with locked package versions.
    """
    site = Path(sysconfig.get_path("purelib"))
    wanted = {
        _normalized(found)
        for lock in locks
        for found in re.findall(r"^([\w.-]+)==", shipped(lock).read_text(), re.MULTILINE)
    }
    found = {
        site / file.parts[0]
        for distribution in metadata.distributions(path=[str(site)])
        if _normalized(distribution.metadata["Name"]) in wanted
        for file in distribution.files or ()
        if file.parts[0] not in {"..", "__pycache__"} and file.suffix != ".pth"
    }
    return sorted(path for path in found if path.exists())


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _produce(writer: int, packages: tuple[Path, ...], programs: tuple[str, ...], failures: list[Exception]) -> None:
    with os.fdopen(writer, "wb") as file:
        try:
            _write_archive(file, packages, programs)
        except BrokenPipeError:  # the engine refused the archive; the import call raises the error
            return
        except (OSError, tarfile.TarError, subprocess.SubprocessError) as error:
            failures.append(error)


def _write_archive(file: IO[bytes], packages: tuple[Path, ...], names: tuple[str, ...]) -> None:
    interpreter = Path(sys.executable).resolve()
    base = Path(sys.base_prefix)
    standard_library = base / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    programs = [Path(found).resolve() for name in names if (found := shutil.which(name)) is not None]
    extensions = list((standard_library / "lib-dynload").glob("*.so"))
    extensions += [library for package in packages for library in package.rglob("*.so*") if package.is_dir()]
    with tarfile.open(fileobj=file, mode="w|") as archive:
        carried = tuple(str(package.resolve()) + os.sep for package in packages)
        for path in _distinct([interpreter, *_libraries([interpreter, *programs, *extensions])]):
            if str(path.resolve()).startswith(carried):
                continue  # a package's own library is copied with the package
            _add(archive, path.resolve(), str(path))
        for name in names:
            if found := shutil.which(name):
                _add(archive, Path(found).resolve(), f"/bin/{name}")
        archive.add(standard_library, arcname=str(standard_library).lstrip("/"), filter=_wanted)
        for link in ("usr/local/bin/python", "usr/local/bin/python3"):
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, str(interpreter)
            archive.addfile(entry)
        for name, text in _ETC.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
        for package in packages:
            archive.add(package, arcname=f"opt/packages/{package.name}", filter=_of_package)


def _libraries(programs: Iterable[Path]) -> Iterator[Path]:
    """Yields the path of every shared library that the programs load, the loader included."""
    listing = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False)
    for match in _LIBRARY.finditer(listing.stdout):
        yield Path(match[1])


def _distinct(paths: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(paths))


def _add(archive: tarfile.TarFile, source: Path, name: str) -> None:
    archive.add(source, arcname=name.lstrip("/"), recursive=False, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode |= 0o444
    return entry


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    if name in _LEFT_OUT or name.endswith((".a", ".pyc")) or name.startswith("config-"):
        return None
    if entry.isdir():
        entry.mode |= 0o555
    return _plain(entry)


def _of_package(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Omits static libraries and headers; keeps .pyc files."""
    # On a read-only root without .pyc files, Python would compile the packages at each start, for half a minute.
    if entry.name.endswith((".a", ".h", ".hpp", ".cuh")):
        return None
    if entry.isdir():
        entry.mode |= 0o555
    return _plain(entry)


def main(task: str) -> None:
    """Makes the image of one of the devnet's tasks: `hello` or `rollouts`."""
    client = docker.from_env(timeout=600)
    try:
        make_image(client) if task == "hello" else make_rollouts_image(client)
    finally:
        client.close()


if __name__ == "__main__":
    main(sys.argv[1])
