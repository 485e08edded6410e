"""docs/upgrading.md: a migration of older data and the way back run by the page's commands; its versions are right."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest
import redis as sync_redis

from discovery.store.record_store import SCHEMA as DISCOVERY
from gateway.store.database import SCHEMA as GATEWAY
from ledger.artifacts import Contract
from ledger.deployment import Deployment
from orchestrator.domain.keys import SCHEMA, pool_keys
from orchestrator.store.migrations import MIGRATIONS
from protocol import __version__
from protocol.identity.keys import Key
from protocol.identity.typed_data import VERSION
from protocol.redis.connection import connect_redis
from protocol.redis.schema import NewerSchema, ensure_schema
from protocol.versions import SPOKEN
from tests.kit.devnet import run_muster
from validator.store.keys import SCHEMA as VALIDATOR

PAGE = (Path(__file__).parents[2] / "docs" / "upgrading.md").read_text()
BLOCKS = dict(re.findall(r"^```sh (\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
KEYS = pool_keys(1)
NODE, ASSIGNMENT = Key.generate().address, "a" * 32
OLD = {
    "node:" + NODE: {"aid": ASSIGNMENT, "state": "healthy"},
    "assignment:" + ASSIGNMENT: {"task": "7", "assigned": "1700000000000", "node": NODE},
}
"""Hashes as schema version 1 has them: without indexes of assignments, and without a stored version."""


def run(block: str, file: Path | None) -> None:
    for line in BLOCKS[block].splitlines():
        words = [str(file) if word == "FILE" else word for word in shlex.split(line)]
        assert words[0] == "muster"
        said = run_muster(*words[1:])
        assert said.code == 0, said.err


async def start(url: str, *, version: int) -> None:
    """Checks and migrates the data as an orchestrator with this schema version does when it starts."""
    redis = connect_redis(url)
    try:
        migrations = {step: MIGRATIONS[step] for step in range(1, version)}
        await ensure_schema(redis, KEYS, service="the orchestrator", version=version, migrations=migrations)
    finally:
        await redis.aclose()


def test_older_data_are_migrated_and_come_back_by_the_commands_of_the_page(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.toml"))
    contracts = dict.fromkeys(Contract, Key.generate().address)
    Deployment(chain_id=1, block=1, contracts=contracts).save(tmp_path / "deployment.json")
    (tmp_path / "muster.toml").write_text(
        f'[orchestrator]\npublic_url = "https://pool.example"\npool_id = 1\ndeployment = "deployment.json"\n'
        f'redis_url = "{redis_url}"\nstorage_directory = "objects"\n'
    )
    (tmp_path / "backups").mkdir()
    with sync_redis.from_url(redis_url, decode_responses=True) as redis:
        redis.zadd(KEYS.of("nodes"), {NODE: 0})
        for name, fields in OLD.items():
            redis.hset(KEYS.prefix + name, mapping=fields)
        old = {name: redis.type(name) for name in redis.keys(KEYS.prefix + "*")}
        before = BLOCKS["before"].splitlines()
        BLOCKS["before"] = "\n".join(before[:2])
        run("before", None)
        (file,) = (tmp_path / "backups").iterdir()
        BLOCKS["before"] = before[2]
        run("before", file)

        asyncio.run(start(redis_url, version=SCHEMA))
        assert redis.zrange(KEYS.of("assignments"), 0, -1) == [f"01700000000000-{ASSIGNMENT}"]
        with pytest.raises(NewerSchema):
            asyncio.run(start(redis_url, version=1))
        run("back", file)
        assert {name: redis.type(name) for name in redis.keys(KEYS.prefix + "*")} == old
        asyncio.run(start(redis_url, version=1))
        asyncio.run(start(redis_url, version=SCHEMA))  # and forward again
        assert redis.zcard(KEYS.of("assignments")) == 1


def test_the_versions_of_this_release_are_those_of_the_code() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {__version__} "))
    numbers = [cell.strip() for cell in row.strip("|").split("|")][1:]
    assert numbers == [str(each) for each in (SCHEMA, GATEWAY, VALIDATOR, DISCOVERY, VERSION, SPOKEN.newest)]
    assert f"### {__version__}" in PAGE
