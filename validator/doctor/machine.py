"""Checks of the machine: cores, memory, disk, and a self-test of an examiner process with its sandbox."""

from __future__ import annotations

import shutil
from dataclasses import replace

from protocol.runtime.budgets import free_memory, machine_memory, usable_cores
from protocol.runtime.findings import DoctorFinding, failure, ok, warning
from validator.examination.child import ExaminerDied, ExaminerProcess, ExaminerUnavailable
from validator.examination.examiner import TRY_OUT_WITHIN
from validator.examination.interface import NotJudged
from validator.examination.settings import ExaminerSettings
from validator.settings import ValidatorSettings

GIB = 1 << 30
LEAST_MEMORY = 2 * GIB
"""Memory below which no examiner and service fit: each takes about 500 MB before it loads a policy."""


def check_cores(settings: ValidatorSettings) -> DoctorFinding:
    """Compares the threads of all examiner processes with the cores of this machine."""
    cores, threads = usable_cores(), settings.workers * settings.threads
    found = f"{settings.workers} workers with {settings.threads} torch threads each, on {cores} cores"
    if threads > cores:
        return warning("threads", found, "lower workers or threads: more threads than cores make each other slower")
    if threads < cores // 2 and settings.device in {None, "cpu"}:
        return warning("threads", found, "without a GPU, raise workers or threads: half of the cores stay idle")
    return ok("threads", found)


def check_memory() -> DoctorFinding:
    """Checks whether the machine, or the container's memory limit, leaves enough memory."""
    memory, free = machine_memory(), free_memory()
    found = f"{memory / GIB:.1f} GiB, {free / GIB:.1f} GiB of it free"
    if memory < LEAST_MEMORY:
        return failure("memory", found, f"at least {LEAST_MEMORY / GIB:.0f} GiB are needed")
    if free < LEAST_MEMORY:
        return warning("memory", found, "close other programs, or raise the limit of the control group")
    return ok("memory", found)


def check_disk(settings: ValidatorSettings) -> DoctorFinding:
    """Checks the disk of the validator's directory: the reserve, and room for the files in hand."""
    directory = settings.directory.expanduser().absolute()
    existing = next(place for place in (directory, *directory.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    largest = settings.pieces() * settings.file_most_bytes
    found = f"{free / GIB:.1f} GiB free for {directory}"
    if free < settings.reserve_bytes:
        return failure("disk", found, f"free {settings.reserve_bytes / GIB:.1f} GiB, or lower reserve_bytes")
    if free < settings.reserve_bytes + largest:
        advice = (
            f"{settings.pieces()} files of the largest size and the reserve take "
            f"{(settings.reserve_bytes + largest) / GIB:.1f} GiB: free some, or lower in_hand or file_most_bytes"
        )
        return warning("disk", found, advice)
    return ok("disk", found)


async def check_examiner(settings: ExaminerSettings) -> DoctorFinding:
    """Starts one examiner process, which decodes a known file in its sandbox and tries the torch device."""
    process = ExaminerProcess(replace(settings, processes=1))
    try:
        found = await process.try_out(within=TRY_OUT_WITHIN)
    except (ExaminerDied, ExaminerUnavailable) as error:
        found = NotJudged(code=error.code, why=error.detail, retryable=True, hint=error.hint)
    finally:
        await process.end()
    if found is None:
        return ok("examiner", "an examiner process decodes a file in its sandbox and computes on its device")
    hint = found.hint or "docs/validators.md explains the code, under self-test"
    return failure("examiner", f"{found.why} ({found.code})", hint)
