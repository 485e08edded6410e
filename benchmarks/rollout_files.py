"""Converts answers of an engine into the file that a node would make of them, without rewards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rollouts.engines.interface import Completion, SampleRequest
from rollouts.files.samples import RolloutFile
from rollouts.files.synthetic_files import unleased_header, unrewarded_sample
from rollouts.precision import Arithmetic, Dtype, EngineName


def as_file(
    requests: Sequence[SampleRequest], completions: Iterable[Completion], *, engine: EngineName, dtype: Dtype
) -> RolloutFile:
    """Makes one file, in the order of the requests."""
    drawn = {one.sample: one for one in completions}
    rows = [unrewarded_sample(drawn[request.sample], prompt=request.prompt_tokens) for request in requests]
    return RolloutFile(unleased_header(arithmetic=Arithmetic(engine=engine, dtype=dtype)), tuple(rows))
