"""Measures `muster admin` with state of some size: `[--redis-megabytes 512] [--object-megabytes 512] [--encrypted]`.

Half of the state is in Redis, as hashes of 2 kB, and half of it are files of 1 MB. Each command runs in a process of
its own. Each line has its time, rate, CPU and peak memory. A writer changes keys during the backup.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from hashlib import sha256
from pathlib import Path

import redis as sync_redis

from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import redis_server
from ledger.artifacts import Contract
from ledger.deployment import Deployment
from orchestrator.domain.keys import SCHEMA, pool_keys
from protocol.identity.keys import Key
from protocol.runtime.randomness import token_bytes

KEYS = pool_keys(1)
VALUE, FILE = 2000, 1 << 20


def main() -> None:
    """Prints a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis-megabytes", type=int, default=512)
    parser.add_argument("--object-megabytes", type=int, default=512)
    parser.add_argument("--encrypted", action="store_true")
    options = parser.parse_args()
    with redis_server() as url, tempfile.TemporaryDirectory() as name, sync_redis.from_url(url) as redis:
        folder = Path(name)
        _settings(folder, url)
        _fill(redis, folder / "objects" / "objects" / "1", options.redis_megabytes, options.object_megabytes)
        secret = []
        if options.encrypted:
            (folder / "passphrase").write_text(token_bytes(32).hex())
            secret = ["--passphrase-file", str(folder / "passphrase")]
        keys, file = redis.dbsize(), folder / "b.tar"
        stop = threading.Event()
        writer = threading.Thread(target=_write, args=(url, stop))
        writer.start()
        try:
            _measured("backup", folder, file, str(file), *secret)
        finally:
            stop.set()
            writer.join()
        _measured("check", folder, file, str(file), *secret)
        redis.flushall()
        shutil.rmtree(folder / "objects")
        (folder / "sealing.key").unlink()
        _measured("restore", folder, file, str(file), *secret)
        print(f"{keys} keys before, {redis.dbsize()} after")


def _settings(folder: Path, url: str) -> None:
    deployment = Deployment(chain_id=1337, block=1, contracts=dict.fromkeys(Contract, Key.generate().address))
    deployment.save(folder / "deployment.json")
    (folder / "sealing.key").write_bytes(b"k" * 44)
    (folder / "muster.toml").write_text(
        f'[orchestrator]\npublic_url = "https://pool.example"\npool_id = 1\ndeployment = "deployment.json"\n'
        f'redis_url = "{url}"\nsecrets_key_file = "sealing.key"\nstorage_directory = "objects"\n'
    )


def _fill(redis: sync_redis.Redis, objects: Path, megabytes: int, object_megabytes: int) -> None:
    redis.set(KEYS.of("schema-version"), SCHEMA)
    pipeline = redis.pipeline(transaction=False)
    for number in range(megabytes * 1_000_000 // VALUE):
        pipeline.hset(KEYS.of("node", str(number)), "value", token_bytes(VALUE))
        if number % 1000 == 999:
            pipeline.execute()
    pipeline.execute()
    owner = Key.generate().address
    for _ in range(object_megabytes):
        content = token_bytes(FILE)
        name = sha256(content).hexdigest()
        path = objects / owner / name[:2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _write(url: str, stop: threading.Event) -> None:
    """Changes a thousand keys one after the other, about 500 times a second."""
    with sync_redis.from_url(url) as redis:
        number = 0
        while not stop.wait(0.002):
            redis.hset(KEYS.of("node", str(number % 1000)), "changed", number)
            number += 1


def _measured(command: str, folder: Path, file: Path, *words: str) -> None:
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "--config", str(folder / "muster.toml"), "admin", command, "--json", *words],
        stdout=subprocess.PIPE,
    )
    try:
        said = process.stdout.read() if process.stdout else b""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        process.kill()
    seconds = time.monotonic() - began
    if process.returncode:
        sys.exit(f"{command} ended with {process.returncode}")
    parts = {part["name"]: part["bytes"] for part in json.loads(said)["parts"]}
    megabytes = file.stat().st_size / 1e6
    print(
        f"{command}: {seconds:.1f} s for {megabytes:.0f} MB ({megabytes / seconds:.0f} MB/s), CPU "
        f"{used.ru_utime + used.ru_stime:.1f} s, at most {used.ru_maxrss / 1024:.0f} MiB of memory; "
        + ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in parts.items())
    )


if __name__ == "__main__":
    end_in_order()
    main()
