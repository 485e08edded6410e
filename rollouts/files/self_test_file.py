"""A minimal rollout file, with which readers warm up and test this machine."""

from __future__ import annotations

import io
from functools import cache

import numpy as np

from protocol.identifiers import ZERO_DIGEST
from rollouts.engines.interface import Completion, FinishReason
from rollouts.files.limits import ReadLimits
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import table_of, write_table
from rollouts.files.synthetic_files import unleased_header, unrewarded_sample
from rollouts.precision import Arithmetic, Dtype, EngineName

TRIAL_LIMITS = ReadLimits(file_bytes=1 << 16, rows=1, decoded_bytes=1 << 20, tokens=16)


@cache
def trial_file() -> bytes:
    """Returns a file of one sample with one token: its work units are 1."""
    answer = Completion(
        sample=0,
        tokens=(0,),
        logprobs=np.zeros(1, np.float32),
        finish=FinishReason.EOS,
        proofs=b"",
        version=ZERO_DIGEST,
    )
    header = unleased_header(arithmetic=Arithmetic(engine=EngineName.TORCH, dtype=Dtype.FLOAT32))
    file = RolloutFile(header, (unrewarded_sample(answer, prompt=(0,)),))
    written = io.BytesIO()
    write_table(table_of(file), written)
    return written.getvalue()
