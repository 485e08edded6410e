"""The torch engine; see the package docstring."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from rollouts.engines.batch_size import fewer
from rollouts.engines.errors import EngineBusy, GenerationStopped, NothingLoaded
from rollouts.engines.interface import Completion, SampleRequest, check_requests
from rollouts.engines.torch.batch import GenerationBatch, GrowingCompletion
from rollouts.engines.torch.cache import Layer, layers_of
from rollouts.errors import EngineFailed
from rollouts.models.memory import available_memory
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import NotANumber
from rollouts.toploc import ProofBuilder, Unprovable

_SHARE_FOR_CACHE = 0.7
"""Share of the free memory at the start of generation; the rest is for activations and logits."""


class TorchEngine:
    """An `Engine` on transformers.

    Args:
        dtype: Data type of the computation.
        device: Device; None for an accelerator if there is one, else the CPU.
        max_batch: Maximum answers in progress; fewer if memory is short.
        cache_bytes: Maximum bytes of keys and values; None for a share of the memory that is free when generation
        begins.

    Raises:
        InvalidInput: The batch or cache size is not positive, or this machine has no such device.
    """

    name = EngineName.TORCH

    def __init__(
        self,
        *,
        dtype: Dtype,
        device: torch.device | None = None,
        max_batch: int = 64,
        cache_bytes: int | None = None,
    ) -> None:
        if max_batch < 1 or (cache_bytes is not None and cache_bytes < 1):
            raise InvalidInput(f"a batch of {max_batch} answers in {cache_bytes} bytes", hint="both are positive")
        self.dtype = dtype
        self._device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise InvalidInput(f"this machine has no device {self._device}", hint="leave the device out, or give cpu")
        self._max_batch = max_batch
        self._cache_bytes = cache_bytes
        self._policy: Policy | None = None
        self._version: Digest | None = None
        self._layers: list[Layer] = []
        self._under_way: weakref.ref[Generator[Completion]] | None = None

    @property
    def version(self) -> Digest | None:
        """The digest of the loaded version; None before the first load and after a failed one."""
        return self._version

    def load(self, folder: Path, *, version: Digest) -> None:
        """Loads a version of the policy from a folder: see `Engine.load`."""
        self._check_idle()
        earlier, self._policy, self._version = self._policy, None, None
        self._policy = load_policy(folder, dtype=self.dtype, device=self._device, instead_of=earlier)
        self._layers = _layers_of_one_token(self._policy)
        self._version = version

    def generate(
        self,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        *,
        with_proofs: bool = True,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Completion]:
        """Yields one completion per request: see `Engine.generate`."""
        self._check_idle()
        if self._policy is None or self._version is None:
            raise NothingLoaded("the torch engine holds no weights")
        facts = self._policy.facts
        check_requests(requests, parameters, vocabulary=facts.vocabulary, context=facts.context)
        answers = self._answers(
            self._policy,
            self._version,
            requests=requests,
            parameters=parameters,
            with_proofs=with_proofs,
            should_stop=should_stop,
        )
        self._under_way = weakref.ref(answers)
        return answers

    def close(self) -> None:
        """Frees all resources."""
        if (answers := self._running()) is not None:
            answers.close()
        self._policy, self._version, self._layers = None, None, []
        self._free()

    def _running(self) -> Generator[Completion] | None:
        answers = self._under_way() if self._under_way is not None else None
        return None if answers is None or inspect.getgeneratorstate(answers) == inspect.GEN_CLOSED else answers

    def _check_idle(self) -> None:
        if self._running() is not None:
            raise EngineBusy("an earlier batch has unfetched answers")

    def _answers(
        self,
        policy: Policy,
        version: Digest,
        *,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        with_proofs: bool,
        should_stop: Callable[[], bool] | None,
    ) -> Generator[Completion]:
        def check() -> None:
            if should_stop is not None and should_stop():
                raise GenerationStopped(f"stopped with {len(left)} of {len(requests)} answers to come")

        left = {request.sample: request for request in requests}
        rows = min(self._max_batch, len(requests))
        with ExitStack() as stack:
            builder = stack.enter_context(ProofBuilder()) if with_proofs else None
            while left:
                batch = GenerationBatch(policy, parameters, layers=self._layers, rows=rows, budget=self._budget())
                try:
                    for completion in _completions(batch, list(left.values()), version, builder, check):
                        del left[completion.sample]
                        yield completion
                except (NotANumber, Unprovable) as error:
                    raise EngineFailed(error.detail, hint=error.hint) from error
                except (MemoryError, RuntimeError) as error:
                    rows = fewer(rows, error, engine=self.name)
                    if builder is not None:
                        for answer in batch.answers:
                            builder.discard(answer.request.sample)
                    del batch, error  # both reference the memory that did not fit
                    self._free()

    def _budget(self) -> int:
        free = int(available_memory(self._device) * _SHARE_FOR_CACHE)
        return free if self._cache_bytes is None else min(free, self._cache_bytes)

    def _free(self) -> None:
        """Returns unused memory to an accelerator; on a CPU, dropping the last reference suffices."""
        if self._device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


@torch.inference_mode()
def _layers_of_one_token(policy: Policy) -> list[Layer]:
    """Returns what each layer caches for a token, as a template of shapes and types for any architecture."""
    cache = DynamicCache()
    policy.fill(torch.zeros(1, 1, dtype=torch.int64, device=policy.device), cache=cache)
    return layers_of(cache)


def _completions(
    batch: GenerationBatch,
    requests: Sequence[SampleRequest],
    version: Digest,
    builder: ProofBuilder | None,
    check: Callable[[], None],
) -> Iterator[Completion]:
    """Answers the requests in one batch; waits for an answer's proofs while other answers grow."""
    first_asked: dict[tuple[int, ...], int] = {}
    for place, request in enumerate(requests):
        first_asked.setdefault(request.prompt_tokens, place)
    waiting = deque(sorted(requests, key=lambda request: first_asked[request.prompt_tokens]))
    proving: deque[tuple[GrowingCompletion, _Pending]] = deque()
    while waiting or batch.answers:
        check()
        batch.admit(waiting, check=check)
        states = batch.step()
        if builder is not None:
            builder.add(batch.samples, states, copy=False)
        proving.extend((answer, _proofs(builder, answer)) for answer in batch.take_finished())
        while proving and proving[0][1].done():
            yield _completion(*proving.popleft(), version)
    while proving:
        check()
        yield _completion(*proving.popleft(), version)


class _Pending(Protocol):
    def done(self) -> bool: ...
    def result(self) -> bytes: ...


class _NoProofs:
    def done(self) -> bool:
        return True

    def result(self) -> bytes:
        return b""


def _proofs(builder: ProofBuilder | None, answer: GrowingCompletion) -> _Pending:
    return _NoProofs() if builder is None else builder.finish(answer.request.sample, rows=len(answer.tokens))


def _completion(answer: GrowingCompletion, proofs: _Pending, version: Digest) -> Completion:
    if answer.finish is None:
        raise EngineFailed(f"sample {answer.request.sample} ended without a reason")
    return Completion(
        sample=answer.request.sample,
        tokens=tuple(answer.tokens),
        logprobs=np.array(answer.logprobs, dtype=np.float32),
        finish=answer.finish,
        proofs=proofs.result(),
        version=version,
    )
