"""Implements `muster rollouts`. This module is separate from the commands because it loads torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from cli.documents import read_document
from cli.output import note, say, show_fields, show_json, show_table, warn
from protocol.errors import InvalidInput
from protocol.identifiers import digest
from protocol.wire.slots import SlotGrant
from rollouts.calibration.limits import RolloutCalibration
from rollouts.checks import CheckFinding, CheckOutcome, CheckResult, SeedParts, SlotFacts, open_version
from rollouts.checks.reading import read
from rollouts.files.samples import RolloutFile, Sample
from rollouts.files.schema import ReadLimits
from rollouts.models.devices import find_device
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from rollouts.recompute.vllm_process import VllmPlace
from rollouts.sandbox import Sandboxes
from rollouts.sandboxed_decoder import Decoder
from rollouts.verify import Verification, verify_file

_READ_LIMITS = ReadLimits(rows=1 << 18, decoded_bytes=512 << 20)
"""Limits of a file: about 30 million tokens. To decode them takes at most 4 GiB of memory and 90 seconds."""


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
    seed = None if lease is not None else _seed_parts(parts)
    if lease is not None and parts.given:
        raise InvalidInput(f"--lease and {', '.join(parts.given)} exclude each other", hint="give --lease alone")
    with _decoder() as decoder:
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
            read_limits=_READ_LIMITS,
            decoder=decoder,
        )


def show_verification(verification: Verification, *, as_json: bool) -> None:
    """Prints a table with the results of all checks, then every finding."""
    if as_json:
        show_json(_report(verification))
    else:
        _print(verification)


def show_samples(file: Path, *, model: Path | None, ids: bool, group: int | None, limit: int, as_json: bool) -> None:
    """Prints samples; implements `muster rollouts show`.

    Raises:
        InvalidInput: The file is not a rollout file or has no such group, or neither `model` nor `ids` is given.
    """
    if model is None and not ids:
        raise InvalidInput(
            f"{file} holds token ids, and no tokenizer is given to decode them",
            hint="name the version's folder with --model, or print token ids with --ids",
        )
    found = _read(file)
    tokenizer = None if model is None or ids else FolderTokenizer(model)
    chosen = [sample for sample in found.samples if group is None or sample.group == group]
    if not chosen:
        raise InvalidInput(f"there is no group {group} in {file}", hint="omit --group to see all groups")
    shown = [_sample(sample, tokenizer) for sample in chosen[:limit]]
    if as_json:
        show_json({"header": found.header, "units": found.units, "samples": shown})
        return
    show_fields(_header(found))
    for sample, one in zip(chosen, shown, strict=False):
        say("")
        say(_title(sample))
        say(f"  prompt  {one['prompt']!r}")
        say(f"  answer  {one['answer']!r}")
    if len(chosen) > limit:
        note(f"{len(chosen) - limit} more samples; --limit shows them")


def _facts(lease: Path, units: int | None) -> SlotFacts:
    grant = read_document(lease, SlotGrant, made_by="POST /v1/slots")
    return SlotFacts.of_lease(grant.lease.lease, chain_id=grant.lease.chain_id, beacon=grant.beacon, units=units)


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


@contextmanager
def _decoder() -> Iterator[Decoder]:
    """Yields a sandboxed decoder, because an untrusted file of 12 kB can decompress to 100 GB."""
    with closing(Sandboxes()) as sandboxes:
        yield Decoder(sandboxes)


def _read(path: Path) -> RolloutFile:
    with _decoder() as decoder:
        found, result = read(path, limits=_READ_LIMITS, decoder=decoder)
    if found is None:
        raise InvalidInput(f"{path} is no rollout file: {result.findings[0].what}")
    return found


def _print(verification: Verification) -> None:
    if verification.file is not None:
        show_fields(_header(verification.file))
    show_table(
        ("check", "result", "figures"),
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
    words = "rejected" if verification.rejected else "nothing is wrong with it"
    if verification.unknown and not verification.rejected:
        words += f", as far as it could be checked: not {', '.join(one.check for one in verification.unknown)}"
    say(words)


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
        "not_accepted": verification.not_accepted,
        "header": None if verification.file is None else verification.file.header,
        "checks": verification.results,
        "limits": verification.limits,
    }


def _header(file: RolloutFile) -> dict[str, object]:
    header = file.header
    rewards = [sample.reward for sample in file.samples]
    return {
        "run": header.run,
        "slot": f"step {header.step}, index {header.index}",
        "node": header.node,
        "version": header.checkpoint,
        "environment": f"{header.environment} {header.environment_version}",
        "made by": f"{header.engine.value} in {header.dtype.value}",
        "samples": f"{len(file.samples)} in {len({sample.group for sample in file.samples})} groups",
        "work units": file.units,
        "mean reward": f"{sum(rewards) / len(rewards):.3f}",
    }


def _sample(sample: Sample, tokenizer: FolderTokenizer | None) -> dict[str, object]:
    return {
        "group": sample.group,
        "sample": sample.sample,
        "prompt_index": sample.prompt_index,
        "prompt": _words(sample.prompt_tokens.tolist(), tokenizer),
        "answer": _words(sample.output_tokens.tolist(), tokenizer),
        "tokens": len(sample.output_tokens),
        "finish": sample.finish,
        "task_reward": sample.task_reward,
        "length_penalty": sample.length_penalty,
        "reward": sample.reward,
        "target_length": sample.target_length,
        "mean_logprob": float(sample.logprobs.mean()) if len(sample.logprobs) else None,
    }


def _words(tokens: list[int], tokenizer: FolderTokenizer | None) -> str:
    """Returns the decoded text, or the token ids if there is no tokenizer or an id is negative."""
    if tokenizer is not None and all(token >= 0 for token in tokens):
        return tokenizer.decode(tokens)
    return " ".join(map(str, tokens))


def _title(sample: Sample) -> str:
    target = "" if sample.target_length is None else f", target {sample.target_length}"
    penalty = f" - {sample.length_penalty:g}" if sample.length_penalty else ""
    earned = f"reward {sample.reward:g} (task {sample.task_reward:g}{penalty})"
    length = f"{len(sample.output_tokens)} tokens{target}, ended by {sample.finish.value}"
    return f"group {sample.group}, sample {sample.sample}: {earned}, {length}, prompt {sample.prompt_index}"
