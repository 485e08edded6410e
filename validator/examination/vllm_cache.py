"""vLLM processes of one examiner process: one per loaded version, within a memory budget."""

from __future__ import annotations

from collections import OrderedDict

from protocol.identifiers import Digest
from protocol.runtime.logs import get_logger
from rollouts.checks import CheckedVersion
from rollouts.engines.vllm.cpu_kernels import check_class
from rollouts.precision import Arithmetic, Dtype
from rollouts.recompute.errors import ClassNotReproduced, starting
from rollouts.recompute.place import VllmPlace
from rollouts.recompute.reference import prove, recording_of
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.recompute.vllm_recomputer import VllmRecomputer

MOST_PROCESSES = 2
"""Maximum number of vLLM processes: leases usually name at most two versions of the policy at a time, and each process
takes about 700 MB besides the weights, keys and values of one step, and the logits that it computes at once."""

_BYTES = {Dtype.FLOAT32: 4, Dtype.BFLOAT16: 2}

_log = get_logger(__name__)


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
        # Before other versions are dropped, because a file alone names the class.
        if arithmetic.device.startswith("cpu-"):
            with starting(arithmetic):
                check_class(arithmetic.device)
        if recording_of(arithmetic) is None:
            raise ClassNotReproduced(f"this release has no recording of {arithmetic}", arithmetic=arithmetic)
        key = arithmetic, version.digest
        size = version.model.parameters * _BYTES[arithmetic.dtype]
        found = self._processes.pop(key, None)
        if found is not None and found[0].alive and found[0].version == version.digest:
            self._processes[key] = found
            return _recomputer(found[0], version)
        if found is not None:
            found[0].close()
        process = self._room(arithmetic, size) or self._start(arithmetic)
        try:
            process.load(version.folder, version=version.digest)
        except BaseException:
            process.close()
            raise
        self._processes[key] = process, size
        return _recomputer(process, version)

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
        with starting(arithmetic):
            process = VllmProcess(self._place, arithmetic)
        try:
            prove(process)
        except BaseException:
            process.close()
            raise
        _log.info("vllm-process-started", arithmetic=str(arithmetic))
        return process


def _recomputer(process: VllmProcess, version: CheckedVersion) -> VllmRecomputer:
    return VllmRecomputer(process, folder=version.folder, version=version.digest)
