"""Common part of the engines: options, the loaded version, and at most one session at a time."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

import torch

from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from rollouts.engines.batch_usage import BatchUsage
from rollouts.engines.errors import EngineBusy, NothingLoaded
from rollouts.engines.interface import Completion, Job, SampleRequest
from rollouts.engines.session import EngineSession, RequestQueue
from rollouts.models.devices import find_device
from rollouts.models.facts import ModelFacts
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters
from rollouts.toploc import ProofBuilder


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
        self._max_batch = self._rows = max_batch
        self._cache_bytes = cache_bytes
        self._facts: ModelFacts | None = None
        self._version: Digest | None = None
        self._session: weakref.ref[EngineSession] | None = None
        self.usage = BatchUsage(max_batch)

    @property
    def arithmetics(self) -> tuple[Arithmetic, ...]:
        """The arithmetics in which this engine computes: see `Engine.arithmetics`."""
        return (Arithmetic(engine=self.name, dtype=self.dtype),)

    @property
    def version(self) -> Digest | None:
        """The digest of the loaded version; None before the first load and after a failed load."""
        return self._version

    @property
    def model(self) -> ModelFacts | None:
        """Facts of the loaded model; None before the first load and after a failed load."""
        return self._facts

    @property
    def max_batch(self) -> int:
        """Maximum answers in progress; smaller than at first after memory ran out."""
        return self._rows

    def open(self, *, with_proofs: bool = True) -> EngineSession:
        """Opens a session on the loaded version: see `SessionEngine.open`."""
        self._check_idle()
        if self._facts is None or self._version is None:
            raise NothingLoaded(f"the {self.name.value} engine has no weights loaded")
        session = EngineSession(self._answers, self._facts, self._version, with_proofs=with_proofs)
        self._session = weakref.ref(session)
        return session

    def generate(
        self,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        *,
        with_proofs: bool = True,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Completion]:
        """Yields one completion per request: see `Engine.generate`."""
        job = Job(requests=tuple(requests), parameters=parameters)
        if should_stop is not None:
            job.should_stop = should_stop
        session = self.open(with_proofs=with_proofs)
        try:
            session.add(job)
        except BaseException:
            session.close()
            raise
        return _answers_of(session, job)

    @abstractmethod
    def _answers(
        self, facts: ModelFacts, version: Digest, queue: RequestQueue, builder: ProofBuilder | None
    ) -> Generator[tuple[int, Completion]]:
        """Computes the answers of a session: see `Answers`."""

    def _open_session(self) -> EngineSession | None:
        session = self._session() if self._session is not None else None
        return None if session is None or session.closed else session

    def _check_idle(self) -> None:
        if self._open_session() is not None:
            raise EngineBusy("an earlier batch has unfetched answers")

    def _close_session(self) -> None:
        if (session := self._open_session()) is not None:
            session.close()


def _answers_of(session: EngineSession, job: Job) -> Generator[Completion]:
    with closing(session):
        yield from session.completions()
    job.done.result()
