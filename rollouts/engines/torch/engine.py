"""The torch engine; see the package docstring."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import torch
from transformers.cache_utils import DynamicCache

from protocol.identifiers import Digest
from rollouts.engines.base import BaseEngine
from rollouts.engines.batch_size import fewer
from rollouts.engines.errors import NothingLoaded
from rollouts.engines.interface import Completion
from rollouts.engines.session import RequestQueue, is_built
from rollouts.engines.torch.batch import GenerationBatch, GrowingCompletion
from rollouts.engines.torch.cache import Layer, layers_of
from rollouts.errors import EngineFailed, OutOfMemory
from rollouts.models.facts import ModelFacts
from rollouts.models.memory import available_memory
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import EngineName
from rollouts.sampling.sampler import NotANumber
from rollouts.toploc import PendingProofs, ProofBuilder, Unprovable

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
        self._facts, self._version, self._rows = self._policy.facts, version, self._max_batch

    def close(self) -> None:
        """Frees all resources."""
        self._close_session()
        self._policy, self._facts, self._version, self._layers = None, None, None, ()
        self._free()

    def _answers(
        self,
        facts: ModelFacts,  # noqa: ARG002 - the policy has them
        version: Digest,
        queue: RequestQueue,
        builder: ProofBuilder | None,
    ) -> Generator[tuple[int, Completion]]:
        policy = self._policy
        if policy is None:
            raise NothingLoaded("the torch engine has no weights loaded")
        while queue.left:
            batch = GenerationBatch(policy, layers=self._layers, rows=self._rows, budget=self._budget())
            try:
                yield from self._completions(batch, queue, version, builder)
            except (NotANumber, Unprovable) as error:
                raise EngineFailed(error.detail, hint=error.hint) from error
            except (MemoryError, RuntimeError) as error:
                self._reduce(batch, queue, error)
                _discard([answer.ticket for answer in batch.answers], builder)
                del batch, error  # both still reference the memory that must be freed
                self._free()
                queue.requeue()
            except BaseException:
                _discard([answer.ticket for answer in batch.answers], builder)
                raise
            finally:
                self.usage.note(0)

    def _reduce(self, batch: GenerationBatch, queue: RequestQueue, error: Exception) -> None:
        """Reduces the batch size after an error; ends the job of an answer that does not fit even alone.

        Raises:
            EngineFailed: The error has a cause other than memory.
        """
        try:
            self._rows = fewer(min(self._rows, len(queue.left)), error, engine=self.name)
        except OutOfMemory as reason:
            if len(batch.in_progress) != 1:
                raise
            [ticket] = batch.in_progress
            # A new error: that one refers to the batch, whose memory must be freed.
            queue.left[ticket].job.failure = OutOfMemory(reason.detail)
            self._rows = self._max_batch

    def _completions(
        self, batch: GenerationBatch, queue: RequestQueue, version: Digest, builder: ProofBuilder | None
    ) -> Iterator[tuple[int, Completion]]:
        """Yields tickets and completions until no request is left.

        The builder makes the proofs of a finished answer while other answers grow.
        """
        proving: deque[tuple[GrowingCompletion, PendingProofs | None]] = deque()
        while True:
            if dropped := queue.poll():
                batch.drop(frozenset(dropped))
                _discard(dropped, builder)
                proving = deque(pair for pair in proving if pair[0].ticket in queue.left)
            if not (queue.waiting or batch.answers):
                break
            if too_long := batch.too_long(queue.waiting):
                for queued in too_long:  # a smaller batch would not help; the next `poll` drops these jobs
                    queued.job.failure = OutOfMemory(
                        f"not even one answer fits: the cache has room for {batch.most_positions} positions"
                    )
                continue
            self.usage.note(min(batch.most, len(batch.answers) + len(queue.waiting)))
            batch.admit(queue.waiting, check=queue.check, builder=builder)
            states = batch.step()
            if builder is not None:
                builder.add(batch.tickets, states, copy=False)
            proving.extend(
                (answer, answer.queued.finish_proofs(builder, tokens=len(answer.tokens)))
                for answer in batch.take_finished()
            )
            while proving and is_built(proving[0][1]):
                yield _completion(*proving.popleft(), version)
        while proving:
            yield _completion(*proving.popleft(), version)

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


def _discard(tickets: Sequence[int], builder: ProofBuilder | None) -> None:
    if builder is not None:
        for ticket in tickets:
            builder.discard(ticket)


def _completion(answer: GrowingCompletion, proofs: PendingProofs | None, version: Digest) -> tuple[int, Completion]:
    request = answer.queued.request
    if answer.finish is None:
        raise EngineFailed(f"sample {request.sample} ended without a reason")
    completion = answer.queued.completion(
        tokens=tuple(answer.tokens),
        logprobs=answer.logprobs,
        finish=answer.finish,
        proofs=proofs,
        version=version,
    )
    return answer.ticket, completion
