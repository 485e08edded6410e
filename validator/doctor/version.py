"""Checks whether this machine can examine work of the run's version: environment, limits, memory, numerics classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protocol.errors import MusterError
from protocol.identifiers import Digest
from protocol.runtime.budgets import machine_memory, weights_budget
from protocol.runtime.clock import Clock
from protocol.runtime.findings import DoctorFinding, failure, ok, warning
from protocol.runtime.threads import run_in_thread
from protocol.wire.runs import CheckpointRef, is_numerics_class
from rollouts.calibration.limits import RolloutCalibration, model_names
from rollouts.checks import CheckedVersion, open_version
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recompute.place import VllmPlace, classes_at
from rollouts.recompute.reference import differences
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.task.fetching import RelayFetch
from rollouts.task.policies import PolicyStore
from validator.examination.settings import ExaminerSettings
from validator.examination.versions import VersionFolders
from validator.service import budgeted
from validator.settings import ValidatorSettings

GIB = 1 << 30
_BYTES = {Dtype.FLOAT32: 4, Dtype.BFLOAT16: 2}


async def check_version(
    settings: ValidatorSettings, run: Digest, checkpoint: CheckpointRef, *, clock: Clock, fetch: bool
) -> list[DoctorFinding]:
    """Opens the run's version and checks its environment, its limits and the memory for its weights.

    Args:
        settings: Settings of the validator.
        run: Id of the run.
        checkpoint: The version.
        clock: Clock of the download.
        fetch: Whether to download the version if it is not on this machine. It stays in the validator's directory.
    """
    examiner, named = budgeted(settings), f"version {checkpoint.version}"
    relays = RelayFetch(clock=clock, allow_plain_http=settings.allow_plain_http) if fetch else None
    if settings.relays:
        checkpoint = checkpoint.model_copy(update={"relays": settings.relays})
    store = PolicyStore(examiner.home, fetch=relays, clock=clock, keep=examiner.keep)
    folders = VersionFolders(store, policies=settings.policies, keep=examiner.keep)
    if not fetch and not _may_be_here(examiner, checkpoint):
        return [
            warning(
                "version",
                f"{named} is not on this machine; its environment, limits and memory were not checked",
                "give --fetch to download it from the run's relays",
            )
        ]
    try:
        async with folders.folder(run, checkpoint) as folder:
            opened = await run_in_thread(open_version, folder)
    except MusterError as error:
        hint = error.hint or "check the relays of the run, and the setting relays"
        return [failure("version", f"{named}: {error.detail}", hint)]
    except OSError as error:
        return [failure("version", f"{named}: {error}", "check the disk of the validator's directory")]
    finally:
        folders.close()
    return check_opened(settings, opened, named=named)


def check_opened(settings: ValidatorSettings, opened: CheckedVersion, *, named: str) -> list[DoctorFinding]:
    """Checks an opened version.

    Args:
        settings: Settings of the validator.
        opened: The version; its environment is installed.
        named: The version's name in findings.
    """
    environment = opened.recipe.environment.name
    return [
        ok("version", f"{named}: {opened.model.parameters / 1e6:.1f} million parameters"),
        ok("environment", f"{environment} {opened.environment.version} is installed"),
        _check_limits(settings, opened),
        _check_weights(settings, opened),
    ]


def _check_limits(settings: ValidatorSettings, opened: CheckedVersion) -> DoctorFinding:
    """Checks that the calibration has limits for each engine and type that the recipe pays for."""
    try:
        calibration = (
            RolloutCalibration.shipped()
            if settings.calibration is None
            else RolloutCalibration.read(settings.calibration)
        )
    except MusterError as error:
        return failure("calibration", error.detail, error.hint or "correct the setting calibration")
    names = model_names(opened.model, digest=opened.digest)
    told = None if settings.dtype is None else Dtype(settings.dtype)
    without = []
    for name in opened.recipe.taken:
        made_by = Arithmetic.parse(name)
        verifier = Arithmetic(engine=EngineName.TORCH, dtype=told or made_by.dtype)
        is_exact = made_by.dtype is verifier.dtype is Dtype.FLOAT32
        found = calibration.limits_for(names, prover=made_by.pair, verifier=verifier.pair)
        if not made_by.is_class and not is_exact and found is None:
            without.append(name)
    if without:
        return failure(
            "calibration",
            f"there are no limits for work of {', '.join(without)} with this model, which the recipe pays for",
            "measure them on machines like the nodes: `muster validator calibrate`; until then such work is parked",
        )
    return ok("calibration", f"there are limits for {', '.join(opened.recipe.taken)}")


def _check_weights(settings: ValidatorSettings, opened: CheckedVersion) -> DoctorFinding:
    """Compares the size of the weights, in the widest type that the recipe pays for, with the budget of a worker."""
    told = None if settings.dtype is None else Dtype(settings.dtype)
    types = {told or Arithmetic.parse(name).dtype for name in opened.recipe.taken}
    size = opened.model.parameters * max(_BYTES[one] for one in types)
    memory, workers = machine_memory(), settings.workers
    budget = settings.policy_memory_bytes or weights_budget(memory, processes=workers)
    found = f"weights of {size / GIB:.2f} GiB, and {budget / GIB:.2f} GiB for each of {workers} workers"
    if settings.policy_memory_bytes is not None and size > budget:
        return failure("weights", found, "raise policy_memory_bytes, or remove it")
    if size * workers > memory * 0.8:
        return failure("weights", found, "lower workers, or use a machine with more memory")
    if 2 * size > budget:
        return warning("weights", found, "a worker loads the weights again after each version: lower workers")
    return ok("weights", found)


async def check_numerics(settings: ValidatorSettings, paid: Sequence[str], *, check: bool) -> list[DoctorFinding]:
    """Checks which numerics classes this machine can verify; nothing if the run pays for none and no vLLM is set.

    Args:
        settings: Settings of the validator.
        paid: Engines, types and classes that the run pays for.
        check: Whether to recompute the recorded file of each class.
    """
    wanted = [name for name in paid if is_numerics_class(name)]
    if settings.vllm_python is None and not wanted:
        return []
    place = VllmPlace(python=settings.vllm_python, device=settings.device, threads=settings.threads)
    try:
        classes = await run_in_thread(classes_at, place)
    except MusterError as error:
        if settings.vllm_python is None:
            found = f"no vLLM in this environment ({error.detail}); the run also pays for {', '.join(wanted)}"
            return [warning("numerics", found, "set vllm_python, or leave such work to other validators of the pool")]
        return [failure("numerics", error.detail, error.hint or "correct the setting vllm_python")]
    named = [str(one) for one in classes]
    found = f"vLLM here recomputes {', '.join(named) or 'no class'}"
    missing = [name for name in wanted if name not in named]
    findings = [
        warning(
            "numerics",
            f"{found}; the run also pays for {', '.join(missing)}",
            "work of these classes goes to other validators of the pool, or waits",
        )
        if missing
        else ok("numerics", found)
    ]
    return findings + ([await run_in_thread(_check_class, place, one) for one in classes] if check else [])


def _check_class(place: VllmPlace, one: Arithmetic) -> DoctorFinding:
    name, advice = f"class {one}", "do not set vllm_python on this validator, and report the difference"
    try:
        with VllmProcess(place, one) as process:
            found = differences(process)
    except MusterError as error:
        return failure(name, error.detail, error.hint or advice)
    return (
        failure(name, f"differs from its recorded file: {found[0]}", advice)
        if found
        else ok(name, "equals its recorded file to the bit")
    )


def _may_be_here(settings: ExaminerSettings, checkpoint: CheckpointRef) -> bool:
    """Returns whether a folder exists that may hold the version; its content is not checked."""
    places: list[Path] = [settings.home / "checkpoints" / checkpoint.digest]
    if settings.policies is not None:
        places += [settings.policies / checkpoint.digest, settings.policies / str(checkpoint.version)]
    return any(place.is_dir() for place in places)
