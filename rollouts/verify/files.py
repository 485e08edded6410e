"""Runs all checks of a rollout file against its version.

    muster rollouts verify FILE --model DIR --lease GRANT

The validator judges submissions by the same checks, and adds row selection, repeated prefills and verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from protocol.errors import InvalidInput
from rollouts.calibration.limits import CheckLimits, RolloutCalibration, class_limits, float32_limits, model_names
from rollouts.checks import (
    EXACT_CHECKS,
    PREFILL_CHECKS,
    Check,
    CheckedVersion,
    CheckInput,
    CheckOutcome,
    CheckResult,
    SeedParts,
    SlotFacts,
    score_checks,
)
from rollouts.checks.bounds import fits_model
from rollouts.checks.reading import read
from rollouts.checks.result import unknown
from rollouts.checks.reward import compared_rows
from rollouts.checks.scoring import other_build, score_rows
from rollouts.environments.errors import BadDataset, EnvironmentFault
from rollouts.errors import BadVersionFolder
from rollouts.files.limits import ReadLimits
from rollouts.files.samples import RolloutFile
from rollouts.models.devices import find_device
from rollouts.models.policy import load_policy
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recompute.interface import Recomputer
from rollouts.recompute.place import VllmPlace
from rollouts.recompute.reference import differences
from rollouts.recompute.torch_recomputer import TorchRecomputer
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.recompute.vllm_recomputer import VllmRecomputer
from rollouts.sandbox.decoder import Decoder
from rollouts.sandbox.errors import SandboxUnavailable

_NOT_JUDGED = (SandboxUnavailable, BadDataset, BadVersionFolder, EnvironmentFault)
"""Errors of this machine or the version, which prevent a judgement."""
_DOES_NOT_FIT = "not run, because tokens or lengths are out of bounds (check 5)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The results of all checks.

    Args:
        file: The decoded file; None if it could not be decoded.
        results: One result per check, in order of execution.
        limits: Limits of the statistical checks; None if the file was not decoded, or there is no calibration for it.
        not_accepted: Reason why the recipe does not accept the file's engine and data type; empty if it does.
        needed: Names of the checks that must be judged. A rollout file needs none, because its node is not at fault if
            a check can't be judged. The service of an answer could choose to be unverifiable.
    """

    file: RolloutFile | None
    results: tuple[CheckResult, ...]
    limits: CheckLimits | None
    not_accepted: str = ""
    needed: frozenset[str] = frozenset()

    @property
    def rejected(self) -> bool:
        """True if a validator would reject the file. If no check failed, the node is not at fault."""
        return bool(self.failed or self.not_accepted)

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """Results of the failed checks."""
        return tuple(one for one in self.results if one.state is CheckOutcome.FAILED)

    @property
    def complete(self) -> bool:
        """True if all needed checks were judged."""
        return not any(one.check in self.needed for one in self.unknown)

    @property
    def unknown(self) -> tuple[CheckResult, ...]:
        """Results of the checks that could not be judged."""
        return tuple(one for one in self.results if one.state is CheckOutcome.UNKNOWN)


def verify_file(
    path: Path,
    version: CheckedVersion,
    *,
    facts: SlotFacts | None = None,
    parts: SeedParts | None = None,
    units: int | None = None,
    calibration: RolloutCalibration | None = None,
    dtype: Dtype | None = None,
    device: torch.device | None = None,
    engine: EngineName | None = None,
    vllm: VllmPlace | None = None,
    read_limits: ReadLimits | None = None,
    decoder: Decoder | None = None,
) -> Verification:
    """Reads a file and runs the exact checks, and the other checks if the tokens fit the model.

    Args:
        path: The file.
        version: The version that the file names, or with `facts` the version that the slot was leased for.
        facts: Facts of the slot; None takes them from the file, `parts` and `units`.
        parts: Parts of the slot's seed that are not in the file.
        units: The submitted work units.
        calibration: Limits; None for the limits shipped with this release. float32 on both sides has limits without a
            calibration.
        dtype: Data type of torch's prefill; None for the data type of the file.
        device: Device of torch's prefill; None for an accelerator if there is one.
        engine: Engine of the prefill; None for vLLM if the file is of a numerics class, else torch. torch judges a file
            of a class within the wider limits of a calibration.
        vllm: The vLLM installation to use; None for the installation in this process's environment.
        read_limits: Size limits of the file.
        decoder: Decodes the file in a sandbox; None decodes it in this process, which is safe only for trusted files.

    Raises:
        InvalidInput: `version` is neither the version that the file names nor the leased version.
        BadVersionFolder: The version's weights can't be loaded.
        NotDecoded: The decoder failed without establishing whether the file is valid.
        OutOfMemory: The weights do not fit into memory.
        NotFound: vLLM is not installed at the given place.
        EngineFailed: vLLM failed.
    """
    file, format_result = read(path, limits=read_limits, decoder=decoder)
    if file is None:
        return Verification(file=None, results=(format_result,), limits=None)
    if file.header.checkpoint != version.digest and (facts is None or facts.digest != version.digest):
        raise InvalidInput(
            f"{version.folder} is not the file's version: the file names {file.header.checkpoint}, the folder is "
            f"{version.digest}",
            hint="name the folder of the version that the file was made with; `muster pool download` prints its number",
        )
    facts = facts or SlotFacts.of_file(file, parts=parts, units=units)
    made_in = file.header.arithmetic
    verifier = verifying_arithmetic(made_in, dtype=dtype, engine=engine)
    calibration = calibration or RolloutCalibration.shipped()
    limits = limits_of(file, version, calibration=calibration, verifier=verifier)
    case = CheckInput.of(file, facts, version, limits=limits)
    reason = _not_computed(case)
    results = [format_result, *(run_check(check, case) for check in EXACT_CHECKS)]
    if reason is not None:
        results += [unknown(check.name, reason) for check in (*PREFILL_CHECKS, *score_checks(version))]
        return Verification(file=file, results=tuple(results), limits=limits, not_accepted=_not_accepted(case))
    with open_recomputer(version, verifier, made_in=made_in, device=device, vllm=vllm) as recomputer:
        case = with_evidence(case, recomputer)
    results += [*(run_check(check, case) for check in PREFILL_CHECKS), *run_score_checks(case)]
    return Verification(file=file, results=tuple(results), limits=limits, not_accepted=_not_accepted(case))


def verifying_arithmetic(made_in: Arithmetic, *, dtype: Dtype | None, engine: EngineName | None) -> Arithmetic:
    """Returns the arithmetic in which work is recomputed; see `verify_file` for the arguments.

    Raises:
        InvalidInput: vLLM shall recompute work of no numerics class.
    """
    if engine is EngineName.VLLM or (engine is None and made_in.is_class):
        return checked_class(made_in)
    return Arithmetic(engine=EngineName.TORCH, dtype=dtype or made_in.dtype)


@contextmanager
def open_recomputer(
    version: CheckedVersion,
    verifier: Arithmetic,
    *,
    made_in: Arithmetic,
    device: torch.device | None,
    vllm: VllmPlace | None,
) -> Iterator[Recomputer]:
    """Loads a version for recomputation.

    Args:
        version: The version.
        verifier: Arithmetic of the recomputation.
        made_in: Arithmetic of the work.
        device: Device of torch's prefill; None for an accelerator if there is one.
        vllm: The vLLM installation to use; None for the installation in this process's environment.

    Raises:
        InvalidInput: This machine does not reproduce the numerics class.
        BadVersionFolder: The weights can't be loaded.
        OutOfMemory: The weights do not fit into memory.
        NotFound: vLLM is not installed at the given place.
        EngineFailed: vLLM failed.
    """
    if not verifier.is_class:
        policy = load_policy(version.folder, dtype=verifier.dtype, device=find_device(device))
        yield TorchRecomputer(policy, made_in=made_in.dtype)
        return
    with VllmProcess(vllm or VllmPlace(), verifier) as process:
        if found := differences(process):
            raise InvalidInput(
                f"this machine does not reproduce {verifier}; first difference in the recorded file: {found[0]}",
                hint="--engine torch checks the file within the wider limits of a calibration",
            )
        process.load(version.folder, version=version.digest)
        yield VllmRecomputer(process, folder=version.folder, version=version.digest)


def checked_class(arithmetic: Arithmetic) -> Arithmetic:
    """Returns the numerics class of a file.

    Raises:
        InvalidInput: The file names engine and data type only.
    """
    if not arithmetic.is_class:
        raise InvalidInput(
            f"the file was generated by {arithmetic}, which is no numerics class, so vLLM can't reproduce its bits",
            hint="verify it with torch",
        )
    return arithmetic


def _not_accepted(case: CheckInput) -> str:
    made_by, recipe = case.file.header.arithmetic, case.version.recipe
    if recipe.takes(made_by):
        return ""
    return f"the file was generated by {made_by}, but the recipe accepts only {', '.join(recipe.taken)}"


def _not_computed(case: CheckInput) -> str | None:
    """Returns the reason why scoring and prefill are skipped; None if they are not skipped.

    They are skipped if tokens don't fit the model, or if the file has too many samples.
    """
    if not fits_model(case):
        return _DOES_NOT_FIT
    if case.served is not None and (case.served.faults or len(case.served.rows) != len(case.file.samples)):
        return "the list of served requests does not fit the file (check 4)"
    rows, wanted = len(case.file.samples), case.facts.groups * case.version.recipe.group_size
    return f"the file has {rows} samples, but its slot has {wanted}" if rows > wanted else None


def run_check(check: Check, case: CheckInput) -> CheckResult:
    """Runs one check. The result is `unknown` if this machine or the version prevents a judgement."""
    try:
        return check.judge(case)
    except _NOT_JUDGED as error:
        return unknown(check.name, error.detail)


def run_score_checks(case: CheckInput) -> tuple[CheckResult, ...]:
    """Scores every row once, and runs the checks that need the scores and replays."""
    checks = score_checks(case.version)
    note = other_build(case)
    try:
        if not note:
            return compared_rows(case, score_rows(case))
    except _NOT_JUDGED as error:
        note = error.detail
    return tuple(unknown(check.name, note) for check in checks)


def with_evidence(case: CheckInput, recomputer: Recomputer) -> CheckInput:
    """Returns the check input with evidence from a recomputation of all rows.

    Raises:
        InvalidInput: A row does not fit the model; check 5 reports such rows.
        EngineFailed: The engine failed.
    """
    rows = case.with_draws(range(len(case.file.samples)))
    return replace(case, evidence=recomputer.evidence(case.drawn_file, rows))


def limits_of(
    file: RolloutFile, version: CheckedVersion, *, calibration: RolloutCalibration, verifier: Arithmetic
) -> CheckLimits | None:
    """Returns the limits for this file, recomputed in the verifier's arithmetic; None if not calibrated.

    A file of a numerics class that another arithmetic recomputes has the limits of its engine and data type.
    """
    names = model_names(version.model, digest=version.digest)
    prover = file.header.arithmetic
    if prover.is_class and prover == verifier:
        return class_limits(names, prover)
    found = calibration.limits_for(names, prover=prover.pair, verifier=verifier.pair)
    if found is None and prover.dtype is Dtype.FLOAT32 and verifier.dtype is Dtype.FLOAT32:
        return float32_limits(names)
    return found
