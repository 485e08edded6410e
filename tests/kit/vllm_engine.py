"""A vLLM engine in a separate process and environment, controlled by a test.

The test uses `EngineProcess`; run as a program, this module is the engine process. Both exchange pickles over pipes,
which is safe because they are one program in two processes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import torch

import rollouts.engines.errors
import rollouts.errors
from protocol import errors as protocol_errors
from protocol.errors import MusterError
from protocol.identifiers import Digest
from rollouts.engines.interface import Completion, SampleRequest
from rollouts.engines.vllm.cpu_kernels import environment_for
from rollouts.engines.vllm.numerics import NO_CLASS
from rollouts.engines.vllm.settings import prepare_process
from rollouts.precision import Dtype
from rollouts.prefill import PrefillItem
from rollouts.sampling.parameters import SamplingParameters
from tests.kit.sessions import JobResult, PlannedJob, drive

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".tools" / "vllm" / "bin" / "python"
_KINDS = vars(protocol_errors) | vars(rollouts.errors) | vars(rollouts.engines.errors)


class EngineProcess:
    """The test's side of the process; a context manager.

    Args:
        log: Receives the process's output.
        device_class: Class of processors in which the engine computes; None for the processor's own.
    """

    def __init__(self, log: Path, *, device_class: str | None = None) -> None:
        self._log = log
        self._device_class = device_class
        variables = {} if device_class in {None, NO_CLASS} else environment_for(str(device_class))
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [PYTHON, "-m", "tests.kit.vllm_engine"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def open(
        self,
        *,
        dtype: Dtype = Dtype.FLOAT32,
        max_batch: int = 64,
        cache_bytes: int | None = None,
        prefix_caching: bool = True,
    ) -> None:
        """Closes the current engine and opens another; `prefix_caching` is on in the product."""
        self._ask(
            "open",
            dtype=dtype,
            max_batch=max_batch,
            cache_bytes=cache_bytes,
            prefix_caching=prefix_caching,
            device_class=self._device_class,
        )

    def preemptions(self) -> int:
        """Returns how often vLLM has discarded an answer's keys and values to compute them again later."""
        count: int = self._ask("preemptions")
        return count

    def open_second(self, folder: Path) -> None:
        """Loads a version into a second engine in the same process."""
        self._ask("open_second", folder=folder)

    def load(self, folder: Path, *, version: Digest) -> None:
        """Loads a version."""
        self._ask("load", folder=folder, version=version)

    def version(self) -> Digest | None:
        """Returns the loaded version."""
        version: Digest | None = self._ask("version")
        return version

    def generate(
        self, requests: Sequence[SampleRequest], parameters: SamplingParameters, *, with_proofs: bool = True
    ) -> dict[int, Completion]:
        """Returns all completions, by sample."""
        answers: list[Completion] = self._ask(
            "generate", requests=requests, parameters=parameters, with_proofs=with_proofs
        )
        assert len({one.sample for one in answers}) == len(answers)
        return {one.sample: one for one in answers}

    def prefill(self, items: Sequence[PrefillItem], *, scheduled: bool) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Returns states and logits of answers, by vLLM's scheduler or by steps without it."""
        found: dict[int, tuple[torch.Tensor, torch.Tensor]] = self._ask("prefill", items=items, scheduled=scheduled)
        return found

    def drive(self, plan: Sequence[PlannedJob]) -> list[JobResult]:
        """Runs the jobs of a plan in one session."""
        results: list[JobResult] = self._ask("drive", plan=plan)
        return results

    def cached_tokens(self) -> int:
        """Returns how many prompt tokens vLLM has taken from its cache of keys and values so far."""
        count: int = self._ask("cached_tokens")
        return count

    def leave(self, requests: Sequence[SampleRequest], parameters: SamplingParameters, *, folder: Path) -> str:
        """Takes one completion, then tries to load another version, and abandons the batch; returns the error's
        name.
        """
        name: str = self._ask("leave", requests=requests, parameters=parameters, folder=folder)
        return name

    def stop(self, requests: Sequence[SampleRequest], parameters: SamplingParameters, *, after: int) -> int:
        """Requests a stop at the `after`-th query; returns how often the engine queried until it stopped."""
        asked: int = self._ask("stop", requests=requests, parameters=parameters, after=after)
        return asked

    def fail(self, error: Exception, *, above: int) -> None:
        """Makes drawing for more rows than `above` raise an error, in the middle of vLLM's step."""
        self._ask("fail", error=error, above=above)

    def mend(self) -> None:
        """Ends the effect of `fail`."""
        self._ask("mend")

    def _ask(self, name: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((name, given), self._process.stdin)
            self._process.stdin.flush()
            good, value = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError):
            raise AssertionError(f"the vLLM process ended:\n{self._log.read_text()[-4000:]}") from None
        if not good:
            kind, detail, hint = value
            if kind in _KINDS:
                raise _KINDS[kind](detail, hint=hint)
            raise AssertionError(f"{kind}: {detail}\n{self._log.read_text()[-4000:]}")
        return value


class _Other:
    """Operations of the engine process; each has the name of the test's method."""

    def __init__(self) -> None:
        # Imports modules that the test's environment lacks.
        from rollouts.engines.vllm import running, sampler_hook  # noqa: PLC0415
        from rollouts.engines.vllm.engine import VllmEngine  # noqa: PLC0415

        self._kind = VllmEngine
        self._drawing: Any = sampler_hook
        self._running: Any = running
        self._arguments = self._running.engine_arguments
        self._draw_rows = self._drawing.draw_rows
        self._engine: Any = None
        self._preempted = self._cached = 0
        self._count_preemptions()
        self._count_cached_tokens()

    def open(self, *, prefix_caching: bool, **given: Any) -> None:
        if self._engine is not None:
            self._engine.close()

        def arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
            return {**self._arguments(*args, **kwargs), "enable_prefix_caching": prefix_caching}

        self._running.engine_arguments = arguments
        self._engine = self._kind(device=torch.device("cpu"), **given)

    def preemptions(self) -> int:
        return self._preempted

    def _count_preemptions(self) -> None:
        prepare_process()
        from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415

        def counted(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            self._preempted += 1
            return preempt(scheduler, *args, **kwargs)

        preempt, Scheduler._preempt_request = Scheduler._preempt_request, counted

    def open_second(self, *, folder: Path) -> None:
        second = self._kind(dtype=Dtype.FLOAT32, device=torch.device("cpu"))
        second.load(folder, version=self._engine.version)

    def load(self, *, folder: Path, version: Digest) -> None:
        self._engine.load(folder, version=version)

    def version(self) -> Digest | None:
        version: Digest | None = self._engine.version
        return version

    def generate(self, **given: Any) -> list[Completion]:
        requests, parameters = given.pop("requests"), given.pop("parameters")
        return list(self._engine.generate(requests, parameters, **given))

    def prefill(self, *, items: Sequence[PrefillItem], scheduled: bool) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        running = self._engine._running
        model = running._step_model
        assert model is not None, "vLLM has the attention of a class"
        if scheduled:
            running._step_model = None
        parts: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for part in self._engine.prefill(items):
            lengths = [span.stop - span.start for span in part.spans]
            for span, *own in zip(part.spans, part.states.split(lengths), part.logits.split(lengths), strict=True):
                assert span.start == sum(len(states) for states, _ in parts.setdefault(span.answer, []))
                parts[span.answer].append((own[0].clone(), own[1].clone()))
        running._step_model = model
        return {
            at: (torch.cat([states for states, _ in own]), torch.cat([logits for _, logits in own]))
            for at, own in parts.items()
        }

    def drive(self, *, plan: Sequence[PlannedJob]) -> list[JobResult]:
        return drive(self._engine, plan)

    def cached_tokens(self) -> int:
        return self._cached

    def _count_cached_tokens(self) -> None:
        from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415

        def counted(engine: Any) -> Any:
            outputs = step(engine)
            self._cached += sum(output.num_cached_tokens or 0 for output in outputs if output.finished)
            return outputs

        step, LLMEngine.step = LLMEngine.step, counted

    def leave(self, *, requests: Any, parameters: Any, folder: Path) -> str:
        answers = self._engine.generate(requests, parameters)
        next(answers)
        try:
            self._engine.load(folder, version=self._engine.version)
        except MusterError as error:
            return type(error).__name__
        return "nothing"

    def stop(self, *, requests: Any, parameters: Any, after: int) -> int:
        asked = 0

        def should_stop() -> bool:
            nonlocal asked
            asked += 1
            return asked >= after

        try:
            list(self._engine.generate(requests, parameters, should_stop=should_stop))
        except rollouts.engines.errors.GenerationStopped:
            return asked
        raise AssertionError("it did not stop")

    def fail(self, *, error: Exception, above: int) -> None:
        def draw_rows(logits_bv: Any, *args: Any, **kwargs: Any) -> Any:
            if len(logits_bv) > above:
                raise error
            return self._draw_rows(logits_bv, *args, **kwargs)

        self._drawing.draw_rows = draw_rows

    def mend(self) -> None:
        self._drawing.draw_rows = self._draw_rows


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    other = _Other()
    while True:
        try:
            name, given = pickle.load(requests)
        except EOFError:
            return
        operation: Callable[..., Any] = getattr(other, name)
        try:
            reply = (True, operation(**given))
        except MusterError as error:
            reply = (False, (type(error).__name__, error.detail, error.hint))
        except Exception as error:  # noqa: BLE001 - told to the test
            reply = (False, (type(error).__name__, str(error), ""))
            sys.excepthook(type(error), error, error.__traceback__)
        pickle.dump(reply, replies)
        replies.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the replies
    _serve(sys.stdin.buffer, pipe)
