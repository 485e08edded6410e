"""vLLM processes of one examiner process: one per loaded version, within a memory budget."""

from __future__ import annotations

from collections import OrderedDict

import structlog

from protocol.errors import MusterError, NotFound, Unavailable
from protocol.identifiers import Digest
from rollouts.checks import CheckedVersion
from rollouts.errors import EngineFailed, OutOfMemory
from rollouts.precision import Arithmetic, Dtype
from rollouts.recompute.reference import differences, recording_of
from rollouts.recompute.vllm_process import VllmPlace, VllmProcess
from rollouts.recompute.vllm_recomputer import VllmRecomputer

MOST_PROCESSES = 2
"""Maximum number of vLLM processes: leases usually name at most two versions of the policy at a time, and each process
takes about 700 MB besides the weights."""

_BYTES = {Dtype.FLOAT32: 4, Dtype.BFLOAT16: 2}

_log = structlog.get_logger(__name__)


class ClassNotReproduced(Unavailable):
    """This machine can't recompute files of a numerics class; another validator's machine may be able to."""

    code = "class-not-reproduced"
    retryable = False
    default_hint = (
        "`muster validator numerics` lists the classes of this machine; the setting vllm_python names an environment "
        "with vLLM"
    )


class VllmCache:
    """Starts vLLM processes, tests each of them once, and loads versions into them.

    Args:
        place: Python interpreter, device and number of threads with which vLLM runs on this machine.
        budget: Maximum size of all loaded weights, in bytes. A version above this size is loaded alone.
    """

    def __init__(self, place: VllmPlace, *, budget: int) -> None:
        self._place = place
        self._budget = budget
        self._processes: OrderedDict[tuple[Arithmetic, Digest], tuple[VllmProcess, int]] = OrderedDict()

    def recomputer(self, version: CheckedVersion, arithmetic: Arithmetic) -> VllmRecomputer:
        """Returns a recomputer of a version in a numerics class.

        Raises:
            ClassNotReproduced: vLLM is missing, has another version, or does not compute in the class on this machine.
            OutOfMemory: The weights do not fit into memory.
            BadVersionFolder: The weights can't be loaded.
            EngineFailed: vLLM failed.
        """
        key = arithmetic, version.digest
        size = version.model.parameters * _BYTES[arithmetic.dtype]
        found = self._processes.pop(key, None)
        if found is not None and found[0].alive and found[0].version == version.digest:
            self._processes[key] = found
            return VllmRecomputer(found[0])
        if found is not None:
            found[0].close()
        process = self._room(arithmetic, size) or self._start(arithmetic)
        try:
            process.load(version.folder, version=version.digest)
        except BaseException:
            process.close()
            raise
        self._processes[key] = process, size
        return VllmRecomputer(process)

    def close(self) -> None:
        """Ends all processes."""
        while self._processes:
            self._processes.popitem()[1][0].close()

    def _room(self, arithmetic: Arithmetic, size: int) -> VllmProcess | None:
        """Drops versions until a new one has room; returns a running process of the class without version, if any.

        Reusing a process saves the start of vLLM: weights of equal shapes are replaced in place.
        """
        reused: VllmProcess | None = None
        while self._processes and (len(self._processes) >= MOST_PROCESSES or size + self._held() > self._budget):
            _, (dropped, _) = self._processes.popitem(last=False)
            if reused is None and dropped.alive and dropped.arithmetic == arithmetic:
                reused = dropped
            else:
                dropped.close()
        return reused

    def _held(self) -> int:
        return sum(size for _, size in self._processes.values())

    def _start(self, arithmetic: Arithmetic) -> VllmProcess:
        """Starts a process, and compares its results with the recording of its numerics class.

        Raises:
            ClassNotReproduced: vLLM is missing, has another version, or does not compute in the class on this machine.
        """
        try:
            process = VllmProcess(self._place, arithmetic)
        except (OutOfMemory, EngineFailed):
            raise
        except MusterError as error:
            raise ClassNotReproduced(error.detail, hint=error.hint or None) from error
        try:
            _check_recording(process)
        except BaseException:
            process.close()
            raise
        _log.info("vllm-process-started", arithmetic=str(arithmetic), recorded=recording_of(arithmetic) is not None)
        return process


def _check_recording(process: VllmProcess) -> None:
    """Lets a process recompute the recorded file of its class, and compares the results with the recording.

    Raises:
        ClassNotReproduced: The process computes other bits than the recording has, or the class can't be compared.
    """
    try:
        found = differences(process)
    except NotFound as error:
        raise ClassNotReproduced(error.detail, hint=error.hint) from error
    if found:
        raise ClassNotReproduced(
            f"this machine does not compute in {process.arithmetic}: {found[0]} of the recorded file",
            hint="don't judge work of this class here; check the versions of torch and vLLM in the environment",
        )
