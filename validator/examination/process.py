"""Program of an examiner process: runs examinations, one at a time, for the service that started it.

The process reads orders from standard input and writes answers to standard output (formats: `channel.py`); output of
libraries goes to standard error. The process ends when its input ends. It has no key and no secret.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import BinaryIO

import torch

from protocol.identifiers import Digest
from protocol.runtime.budgets import machine_memory, weights_budget
from protocol.runtime.logs import configure_logs
from rollouts.calibration.limits import RolloutCalibration
from rollouts.sandbox import Sandboxes
from validator.examination.channel import (
    ExaminationReply,
    ExaminerInput,
    ExaminerOutput,
    ExaminerReady,
    Order,
    Progress,
    Question,
    Reply,
    StartExaminer,
    TryOut,
    read,
    write,
)
from validator.examination.interface import Conclusion, NotJudged
from validator.examination.model_cache import ModelCache
from validator.examination.procedure import Procedure
from validator.examination.reading import LimitedReader
from validator.examination.settings import ExaminerSettings
from validator.examination.vllm_cache import VllmCache


def main() -> None:
    """Answers orders until the standard input ends."""
    orders = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not write to stdout between the answers
    configure_logs(level=os.environ.get("MUSTER_LOG", "WARNING"))
    content = read(orders)
    if content is None:
        return
    settings = StartExaminer.model_validate_json(content).settings
    vllm = VllmCache(settings.vllm, budget=weights_of(settings, device_of(settings)))
    try:
        _serve(_procedure(settings, vllm), orders, answers)
    finally:
        vllm.close()


def _serve(procedure: Procedure, orders: BinaryIO, answers: BinaryIO) -> None:
    _say(answers, ExaminerReady())
    while (content := read(orders)) is not None:
        order = ExaminerInput.model_validate_json(content).order
        if isinstance(order, TryOut):
            answer = _guarded(procedure.try_out)
        else:
            answer = _examine(procedure, order, orders, answers)
        _say(answers, answer)
        if answer.ends:
            return


def _say(answers: BinaryIO, report: ExaminerReady | Question | Progress | ExaminationReply) -> None:
    write(answers, ExaminerOutput(report=report))


def device_of(settings: ExaminerSettings) -> torch.device:
    """Returns the device of prefills."""
    return torch.device(settings.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _procedure(settings: ExaminerSettings, vllm: VllmCache) -> Procedure:
    torch.set_num_threads(settings.threads)
    device = device_of(settings)
    calibration = RolloutCalibration.shipped()
    if settings.calibration is not None:
        calibration = RolloutCalibration.read(settings.calibration)
    return Procedure(
        reader=LimitedReader(Sandboxes(), most=settings.most),
        models=ModelCache(device, budget=weights_of(settings, device), strict=settings.policy_memory is not None),
        vllm=vllm,
        calibration=calibration,
        dtype=settings.dtype,
        margin=settings.margin,
        scoring=settings.scoring_budget,
    )


def weights_of(settings: ExaminerSettings, device: torch.device) -> int:
    """Returns the maximum total size of the weights that this process may hold on a device, in bytes."""
    if settings.policy_memory is not None:
        return settings.policy_memory
    memory = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else machine_memory()
    return weights_budget(memory, processes=settings.processes)


class _GivenUpError(Exception):
    """The service has ended, or no longer wants the result of this examination."""


def _examine(procedure: Procedure, order: Order, orders: BinaryIO, answers: BinaryIO) -> ExaminationReply:
    def is_copy(fingerprint: Digest) -> bool:
        _say(answers, Question(fingerprint=fingerprint))
        content = read(orders)
        reply = None if content is None else Reply.model_validate_json(content).copy_found
        if reply is None:
            raise _GivenUpError
        return reply

    def progress() -> None:
        _say(answers, Progress())

    try:
        return _guarded(lambda: procedure.examine(order, is_copy=is_copy, progress=progress))
    except _GivenUpError:
        return ExaminationReply(
            not_judged=NotJudged(code="given-up", why="the service abandoned the examination", retryable=True)
        )


def _guarded(work: Callable[[], Conclusion | NotJudged | None]) -> ExaminationReply:
    """Runs an examination or a self-test and returns its result; a crash gives `NotJudged`.

    Raises:
        _GivenUpError: The service no longer waits for the result.
    """
    try:
        found = work()
    except _GivenUpError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug of the validator must not become a verdict on the file
        traceback.print_exc()
        # After a CUDA error the process may be unusable: torch reports all later calls as failed.
        broken = isinstance(error, RuntimeError) and torch.cuda.is_available()
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
        return ExaminationReply(not_judged=NotJudged(code="examiner-failed", why=why, retryable=True), ends=broken)
    return ExaminationReply(conclusion=found) if isinstance(found, Conclusion) else ExaminationReply(not_judged=found)


if __name__ == "__main__":
    main()
