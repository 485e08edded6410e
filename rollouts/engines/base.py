"""Common part of the engines: options, the loaded version, and at most one batch at a time."""

from __future__ import annotations

import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence, Sized

import torch

from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from rollouts.engines.errors import EngineBusy, GenerationStopped, NothingLoaded
from rollouts.engines.interface import Completion, SampleRequest, check_requests
from rollouts.models.devices import find_device
from rollouts.models.facts import ModelFacts
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters


class BaseEngine(ABC):
    """Base class of engines.

    Args:
        dtype: Data type of the computation.
        device: Device; None for an accelerator if there is one, else the CPU.
        max_batch: Maximum answers in progress; fewer if memory is short.
        cache_bytes: Maximum bytes of keys and values; None for a share of the free memory.

    Raises:
        InvalidInput: The batch or cache size is not positive, or this machine has no such device.
    """

    name: EngineName

    def __init__(
        self,
        *,
        dtype: Dtype,
        device: torch.device | None = None,
        max_batch: int = 64,
        cache_bytes: int | None = None,
    ) -> None:
        if max_batch < 1 or (cache_bytes is not None and cache_bytes < 1):
            raise InvalidInput(
                f"an engine can't have a batch of {max_batch} answers and a cache of {cache_bytes} bytes",
                hint="give positive numbers",
            )
        self.dtype = dtype
        self._device = find_device(device)
        self._max_batch = max_batch
        self._cache_bytes = cache_bytes
        self._facts: ModelFacts | None = None
        self._version: Digest | None = None
        self._last_batch: weakref.ref[Generator[Completion]] | None = None

    @property
    def arithmetics(self) -> tuple[Arithmetic, ...]:
        """The arithmetics in which this engine computes: see `Engine.arithmetics`."""
        return (Arithmetic(engine=self.name, dtype=self.dtype),)

    @property
    def version(self) -> Digest | None:
        """The digest of the loaded version; None before the first load and after a failed load."""
        return self._version

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
        facts = self._facts
        if facts is None or self._version is None:
            raise NothingLoaded(f"the {self.name.value} engine has no weights loaded")
        check_requests(requests, parameters, vocabulary=facts.vocabulary, context=facts.context)
        left = {request.sample: request for request in requests}
        check = _stop_check(should_stop, left, len(requests))
        answers = self._answers(facts, self._version, left, parameters=parameters, with_proofs=with_proofs, check=check)
        self._last_batch = weakref.ref(answers)
        return answers

    @abstractmethod
    def _answers(
        self,
        facts: ModelFacts,
        version: Digest,
        left: dict[int, SampleRequest],
        *,
        parameters: SamplingParameters,
        with_proofs: bool,
        check: Callable[[], None],
    ) -> Generator[Completion]:
        """Yields completions of the requests in `left`, and removes answered requests from `left`.

        Args:
            facts: Facts of the loaded model.
            version: The version digest of the loaded model.
            left: Requests without an answer, by sample number.
            parameters: Sampling parameters.
            with_proofs: Whether to build proofs.
            check: Raises `GenerationStopped` if the caller wants to stop; called at least once a second.
        """

    def _running_batch(self) -> Generator[Completion] | None:
        answers = self._last_batch() if self._last_batch is not None else None
        return None if answers is None or inspect.getgeneratorstate(answers) == inspect.GEN_CLOSED else answers

    def _check_idle(self) -> None:
        if self._running_batch() is not None:
            raise EngineBusy("an earlier batch has unfetched answers")

    def _close_batch(self) -> None:
        if (answers := self._running_batch()) is not None:
            answers.close()


def _stop_check(should_stop: Callable[[], bool] | None, left: Sized, total: int) -> Callable[[], None]:
    def check() -> None:
        if should_stop is not None and should_stop():
            raise GenerationStopped(f"stopped with {len(left)} of {total} answers missing")

    return check
