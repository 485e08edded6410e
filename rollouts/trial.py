"""A file of rollouts that nobody made: readers warm up on it, and find out whether they can read any."""

from __future__ import annotations

import io
from functools import cache

import numpy as np

from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST
from rollouts.engines.interface import Dtype, EngineName, FinishReason
from rollouts.samples import RolloutFile, Sample, SlotHeader
from rollouts.schema import ReadLimits, table_of, write_table

TRIAL_LIMITS = ReadLimits(file_bytes=1 << 16, rows=1, decoded_bytes=1 << 20, tokens=16)


@cache
def trial_file() -> bytes:
    """One sample of one token: its work units are 1."""
    header = SlotHeader(
        run=ZERO_DIGEST,
        step=0,
        index=0,
        node=ZERO_ADDRESS,
        checkpoint=ZERO_DIGEST,
        environment="self-test",
        environment_version="1",
        engine=EngineName.TORCH,
        dtype=Dtype.FLOAT32,
    )
    sample = Sample(
        group=0,
        sample=0,
        prompt_index=0,
        prompt_tokens=np.zeros(1, np.int32),
        output_tokens=np.zeros(1, np.int32),
        logprobs=np.zeros(1, np.float32),
        finish=FinishReason.EOS,
        task_reward=0.0,
        length_penalty=0.0,
        reward=0.0,
        target_length=None,
        proofs=b"",
    )
    written = io.BytesIO()
    write_table(table_of(RolloutFile(header, (sample,))), written)
    return written.getvalue()
