"""Implements `muster rollouts verify`. This module is separate from the commands because it loads torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from cli.output.documents import read_document
from cli.output.printing import say, show_fields, show_json, show_table, warn
from cli.output.tables import Column, Columns
from cli.rollouts.samples import READ_LIMITS, decoder_in_sandbox, header_fields
from protocol.errors import InvalidInput
from protocol.identifiers import digest
from protocol.wire.slots import SlotGrant
from rollouts.calibration.limits import RolloutCalibration
from rollouts.checks import CheckFinding, CheckOutcome, CheckResult, SeedParts, SlotFacts, open_version
from rollouts.models.devices import find_device
from rollouts.precision import Dtype, EngineName
from rollouts.recompute.place import VllmPlace
from rollouts.verify.answers import MOST_BYTES, Answer, verify_answer
from rollouts.verify.files import Verification, verify_file

CHECKS = Columns.of("check", Column("result", least=20), Column("figures", least=20))


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenParts:
    """Parts of a slot's seed from the command's options; None for an option that was not given."""

    chain_id: int | None = None
    pool: int | None = None
    beacon: str | None = None
    salt: str | None = None

    @property
    def given(self) -> list[str]:
        """Names of the given options."""
        return [f"--{one.name.replace('_', '-')}" for one in fields(self) if getattr(self, one.name) is not None]


def verify(
    file: Path,
    *,
    model: Path,
    lease: Path | None,
    parts: GivenParts,
    units: int | None,
    request: Path | None = None,
    allow_missing_proofs: bool = False,
    allow_chunk: bool = False,
    calibration: Path | None,
    dtype: Dtype | None,
    device: str | None,
    engine: EngineName | None,
    vllm_python: Path | None,
) -> Verification:
    """Checks a file; implements `muster rollouts verify`.

    Raises:
        MusterError: The file could not be checked.
    """
    if is_answer(file):
        if slot := [
            *parts.given,
            *(["--lease"] if lease is not None else []),
            *(["--units"] if units is not None else []),
        ]:
            raise InvalidInput(f"an answer has no slot, so {', '.join(slot)} can't be given", hint="leave it out")
        return verify_answer(
            Answer.parse(_read(file)),
            model,
            request=None if request is None else _read(request),
            allow_missing_proofs=allow_missing_proofs,
            allow_chunk=allow_chunk,
            calibration=None if calibration is None else RolloutCalibration.read(calibration),
            dtype=dtype,
            device=None if device is None else find_device(device),
            engine=engine,
            vllm=VllmPlace(python=vllm_python, device=device),
        )
    options = {
        "--request": request is not None,
        "--allow-missing-proofs": allow_missing_proofs,
        "--allow-chunk": allow_chunk,
    }
    if given := [name for name, is_given in options.items() if is_given]:
        raise InvalidInput(f"{given[0]} belongs to an answer of `muster serve`", hint="leave it out for a rollout file")
    seed = None if lease is not None else _seed_parts(parts)
    if lease is not None and parts.given:
        raise InvalidInput(f"--lease and {', '.join(parts.given)} exclude each other", hint="give --lease alone")
    with decoder_in_sandbox() as decoder:
        return verify_file(
            file,
            open_version(model),
            facts=None if lease is None else _facts(lease, units),
            parts=seed,
            units=units,
            calibration=None if calibration is None else RolloutCalibration.read(calibration),
            dtype=dtype,
            device=None if device is None else find_device(device),
            engine=engine,
            vllm=VllmPlace(python=vllm_python, device=device),
            read_limits=READ_LIMITS,
            decoder=decoder,
        )


def is_answer(file: Path) -> bool:
    """Returns whether a file is JSON and not Parquet, by its first byte that is no white space."""
    with file.open("rb") as opened:
        return opened.read(64).lstrip()[:1] == b"{"


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MOST_BYTES + 1)


def show_verification(verification: Verification, *, as_json: bool) -> None:
    """Prints a table with the results of all checks, then every finding."""
    if as_json:
        show_json(_report(verification))
    else:
        _print(verification)


def _facts(lease: Path, units: int | None) -> SlotFacts:
    grant = read_document(lease, SlotGrant, made_by="POST /v1/slots")
    return SlotFacts.of_lease(grant.lease.lease, domain=grant.lease.domain, beacon=grant.beacon, units=units)


def _seed_parts(given: GivenParts) -> SeedParts | None:
    """Returns all parts of the seed; None if no part was given.

    Raises:
        InvalidInput: Some parts are missing, or a part is not a digest.
    """
    if not given.given:
        return None
    if given.chain_id is None or given.pool is None or given.beacon is None or given.salt is None:
        raise InvalidInput(
            f"a seed has four parts, and only {', '.join(given.given)} is given",
            hint="give --chain-id, --pool, --beacon and --salt, or only --lease",
        )
    return SeedParts(chain_id=given.chain_id, pool_id=given.pool, beacon=digest(given.beacon), salt=digest(given.salt))


def _print(verification: Verification) -> None:
    if verification.file is not None:
        show_fields(header_fields(verification.file))
    show_table(
        CHECKS,
        [(one.check, _state(one), _figures(one)) for one in verification.results],
    )
    for one in verification.failed:
        for finding in one.findings:
            say(f"{one.check}: {_place(finding)}{finding.what}")
        if one.found > len(one.findings):
            say(f"{one.check}: … and {one.found - len(one.findings)} more")
    for one in verification.results:
        if one.note:
            warn(f"{one.check}: {one.note}")
    if verification.not_accepted:
        say(f"{verification.not_accepted}: the work is not paid, and no stake is slashed")
    say(_conclusion(verification))


def _conclusion(verification: Verification) -> str:
    if verification.rejected:
        return "rejected"
    missing = ", ".join(one.check for one in verification.unknown)
    if not verification.complete:
        return f"not verified: the answer may be forged, because it could not be checked completely: not {missing}"
    return "nothing is wrong with it" + (f", as far as it could be checked: not {missing}" if missing else "")


def _state(result: CheckResult) -> str:
    return f"failed ({result.fails})" if result.state is CheckOutcome.FAILED else result.state.value


def _figures(result: CheckResult) -> str:
    shown = (
        f"{name.replace('_', ' ')} {value:.4g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
        for name, value in result.figures.items()
        if value is not None
    )
    return ", ".join(shown)


def _place(finding: CheckFinding) -> str:
    parts = (("row", finding.row), ("sample", finding.sample), ("group", finding.group), ("token", finding.position))
    named = [f"{name} {value}" for name, value in parts if value is not None]
    return f"{', '.join(named)}: " if named else ""


def _report(verification: Verification) -> dict[str, object]:
    return {
        "rejected": verification.rejected,
        "complete": verification.complete,
        "not_accepted": verification.not_accepted,
        "header": None if verification.file is None else verification.file.header,
        "checks": verification.results,
        "limits": verification.limits,
    }
