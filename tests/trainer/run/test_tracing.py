"""The trace of a piece of work through a real pool: orchestrator, validator, ledger and trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.identifiers import Digest
from protocol.runtime.tracing import TraceIds
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile
from tests.kit.collector import traced
from tests.kit.scripted_examiner import concluded
from tests.kit.trained_pool import TrainedPool, audit_of
from tests.kit.validators import PoolWithValidators


async def test_one_trace_leads_from_the_lease_to_the_learned_version(
    pool: TrainedPool, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validators = PoolWithValidators(pool.world, pool.run, pool.node, redis_url, tmp_path)
    validator = validators.validator()

    async def judge(grant: SlotGrant, file: RolloutFile, sha256: Digest) -> None:
        rows = audit_of(grant, file, sha256, validator.key, pool.rewards).rows
        validator.examiner.answers[grant.lease.lease.key.hash] = concluded(rows=rows, audited=())
        assert await validator.judge() == 1
        await pool.run.sync.round()

    monkeypatch.setattr(pool, "judge", judge)
    with traced(monkeypatch) as collector:
        async with pool.working():
            assert (await pool.train(steps=2)).step == 2
    await validator.dependencies.chain.aclose()
    await validator.dependencies.remote.aclose()
    await validator.dependencies.redis.aclose()

    assert set(collector.requests) == {"/v1/traces"}
    batches = pool.recorded().batches
    works = [file.key for batch in batches.values() for file in batch.files]
    assert len(works) >= 2
    host = pool.folder.as_posix()
    for step, batch in batches.items():
        for key in (file.key for file in batch.files):
            ids = TraceIds.of(key)
            found = collector.of(ids.trace)
            assert found.keys() == {
                "lease",
                "submission",
                "examination",
                "fetch",
                "checks",
                "verdict",
                "gathering",
                "training",
                "version",
            }
            assert all(len(spans) == 1 for spans in found.values())
            one = {name: spans[0] for name, spans in found.items()}
            assert (one["lease"].id, one["lease"].parent) == (ids.root, 0)
            assert one["checks"].parent == one["fetch"].parent == one["examination"].id
            others = one.keys() - {"lease", "fetch", "checks"}
            assert {one[name].parent for name in others} == {ids.root}
            assert {span.attributes["muster.work"] for span in one.values()} == {key}
            assert one["lease"].attributes["muster.node"] == pool.node.address
            assert one["examination"].attributes["muster.outcome"] == "accepted"
            assert one["checks"].events == [{"name": "check", "muster.check": "format", "muster.state": "passed"}]
            assert one["checks"].attributes["muster.prefill_s"] == 0.01
            assert one["training"].attributes["muster.step"] == step
            assert one["version"].attributes["muster.version"] == step + 1
            assert one["training"].ended_ns <= one["version"].ended_ns
            assert not any(span.failed for span in one.values())
            assert host not in str(one)
            assert "127.0.0.1" not in str(one), "no addresses of hosts"
