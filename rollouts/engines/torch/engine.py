"""The torch engine; see the package docstring."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from protocol.identifiers import Digest
from rollouts.engines.base import BaseEngine
from rollouts.engines.batch_size import fewer
from rollouts.engines.errors import NothingLoaded
from rollouts.engines.interface import Completion, SampleRequest
from rollouts.engines.torch.batch import GenerationBatch, GrowingCompletion
from rollouts.engines.torch.cache import Layer, layers_of
from rollouts.errors import EngineFailed
from rollouts.models.facts import ModelFacts
from rollouts.models.memory import available_memory
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import EngineName
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import NotANumber
from rollouts.toploc import ProofBuilder, Unprovable

_SHARE_FOR_CACHE = 0.7
"""Share of the free memory for the cache, measured when a batch starts; the rest is for activations and logits."""


class TorchEngine(BaseEngine):
    """An `Engine` on transformers. Its cache uses 70 % of the free memory, at most `cache_bytes`."""

    name = EngineName.TORCH
    _policy: Policy | None = None
    _layers: Sequence[Layer] = ()

    def load(self, folder: Path, *, version: Digest) -> None:
        """Loads a version of the policy from a folder: see `Engine.load`."""
        self._check_idle()
        earlier, self._policy, self._facts, self._version = self._policy, None, None, None
        self._policy = load_policy(folder, dtype=self.dtype, device=self._device, instead_of=earlier)
        self._layers = _layers_of_one_token(self._policy)
        self._facts, self._version = self._policy.facts, version

    def close(self) -> None:
        """Frees all resources."""
        self._close_batch()
        self._policy, self._facts, self._version, self._layers = None, None, None, ()
        self._free()

    def _answers(
        self,
        facts: ModelFacts,  # noqa: ARG002 - the policy has them
        version: Digest,
        left: dict[int, SampleRequest],
        *,
        parameters: SamplingParameters,
        with_proofs: bool,
        check: Callable[[], None],
    ) -> Generator[Completion]:
        policy = self._policy
        if policy is None:
            raise NothingLoaded("the torch engine has no weights loaded")
        rows = min(self._max_batch, len(left))
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
                    del batch, error  # both still reference the memory that must be freed
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
    """Returns the keys and values that each layer caches for one token.

    They are a template of the cache's shapes and types, which works for any architecture.
    """
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
    """Yields the completions of one batch.

    The builder makes the proofs of a finished answer while other answers grow.
    """
    first_asked: dict[tuple[int, ...], int] = {}  # sorts equal prompts together, as `admit` requires
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
