"""Measures what decoding strangers' files in a sandbox costs; `python -m benchmarks.decoding`.

Rollout files of the sizes that the trainer and validators read are decoded in this process and in a warm sandbox
(`rollouts.sandbox.decoder`), in alternating order. CPU time includes the sandbox's processes.
The first row includes starting its sandbox.
"""

from __future__ import annotations

import io
import resource
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from protocol.identifiers import ZERO_DIGEST
from rollouts.engines.interface import Completion, FinishReason
from rollouts.files.limits import ReadLimits
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import read_rollout_bytes, table_of, write_table
from rollouts.files.synthetic_files import unleased_header, unrewarded_sample
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.sandbox import Sandboxes, SandboxSettings
from rollouts.sandbox.decoder import Decoder

SHAPES = ((64, 8), (256, 8), (256, 1024), (1024, 4096))
"""(Answers per file, tokens per answer): a devnet file, a devnet step, and files of larger models."""
PROMPT = 16
PROOF_BYTES = 258
"""Bytes of a proof; there is one proof for each 32 tokens."""
LIMITS = ReadLimits(rows=1 << 16, decoded_bytes=1 << 28)


def file_of(answers: int, tokens: int) -> bytes:
    """Returns a file of random tokens."""
    rng = np.random.default_rng([answers, tokens])
    drawn = [
        Completion(
            sample=number,
            tokens=tuple(rng.integers(0, 32_000, tokens).tolist()),
            logprobs=-rng.random(tokens, np.float32),
            finish=FinishReason.EOS,
            proofs=rng.bytes(PROOF_BYTES * -(-tokens // 32)),
            version=ZERO_DIGEST,
        )
        for number in range(answers)
    ]
    prompts = rng.integers(0, 64, (answers, PROMPT)).tolist()
    samples = [
        unrewarded_sample(answer, prompt=prompt, group=answer.sample // 16, prompt_index=answer.sample // 16)
        for answer, prompt in zip(drawn, prompts, strict=True)
    ]
    header = unleased_header(arithmetic=Arithmetic(engine=EngineName.TORCH, dtype=Dtype.FLOAT32))
    sink = io.BytesIO()
    write_table(table_of(RolloutFile(header, tuple(samples))), sink)
    return sink.getvalue()


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of all its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def timed(call: Callable[[], object], times: int) -> tuple[float, float]:
    """Returns average CPU and wall seconds of one call."""
    cpu, since = cpu_seconds(), time.perf_counter()
    for _ in range(times):
        call()
    return (cpu_seconds() - cpu) / times, (time.perf_counter() - since) / times


def walled(content: bytes, times: int) -> None:
    """Starts a sandbox, decodes in it, and ends it, so that its CPU seconds are counted."""
    sandboxes = Sandboxes(SandboxSettings.load().model_copy(update={"most": 1}))
    decoder = Decoder(sandboxes)
    decoder.warm_up()
    for _ in range(times):
        decoder.decode(content, limits=LIMITS)
    sandboxes.close()


def main() -> None:
    """Measures and prints."""
    table = Table(title="decoding one file: in this process, in a warm sandbox")
    for column in ("answers", "tokens each", "KiB", "CPU here", "CPU sandbox", "wall here", "wall sandbox"):
        table.add_column(column, justify="right")
    start = timed(lambda: walled(b"no such file", 0), 5)
    for answers, tokens in SHAPES:
        content = file_of(answers, tokens)
        times = 50 if len(content) < 1 << 20 else 5
        read_rollout_bytes(content, limits=LIMITS)
        here = timed(lambda content=content: read_rollout_bytes(content, limits=LIMITS), times)  # type: ignore[misc]
        both = timed(lambda content=content, times=times: walled(content, times), 1)  # type: ignore[misc]
        there = [(total - begun) / times for total, begun in zip(both, start, strict=True)]
        cells = (answers, tokens, f"{len(content) / 1024:,.0f}", *_ms(here[0], there[0], here[1], there[1]))
        table.add_row(*map(str, cells))
    Console(width=110).print(table)
    print(f"starting a sandbox and ending it: {start[0]:.2f} s of CPU, {start[1]:.2f} s")


def _ms(*seconds: float) -> list[str]:
    return [f"{1000 * each:,.1f} ms" for each in seconds]


if __name__ == "__main__":
    end_in_order()
    main()
