"""Runs the checks of a rollout file on an answer of `muster serve`.

    muster rollouts verify ANSWER.json --model FOLDER

The answer's field `muster` has the seed, so that every token can be replayed. The checks are those of rollout files;
left out are those of slots and rewards, which an answer does not have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import JsonValue, ValidationError

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import Digest
from protocol.openai.errors import InvalidRequest
from protocol.openai.replies import ReplyFormat, generated_choice, usage_of
from protocol.verdicts import ReasonCode
from protocol.wire.answers import AnswerRecord
from rollouts.calibration.limits import RolloutCalibration
from rollouts.checks import (
    PREFILL_CHECKS,
    CheckedVersion,
    CheckFinding,
    CheckInput,
    CheckResult,
    Draws,
    Fails,
    RowEvidence,
    SlotFacts,
    bounds,
    computation,
    termination,
)
from rollouts.checks.bounds import fits_model
from rollouts.checks.result import concluded, unknown
from rollouts.engines.interface import Completion
from rollouts.environments import load_environment
from rollouts.errors import BadVersionFolder
from rollouts.files.samples import RolloutFile
from rollouts.files.synthetic_files import unleased_header, unrewarded_sample
from rollouts.models.facts import read_model
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlanner
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recipe import EnvironmentChoice, PromptRange, Recipe, SamplingChoice
from rollouts.recompute.interface import Recomputer
from rollouts.recompute.place import VllmPlace
from rollouts.serving.comparison import request_differences
from rollouts.serving.record import completion_of, sampling_of
from rollouts.serving.replies import whole_choice
from rollouts.verify.files import Verification, limits_of, open_recomputer, run_check, verifying_arithmetic

MOST_BYTES = 64 << 20
"""Maximum size of an answer's JSON, in bytes."""

_ROWS_AT_ONCE = 8
"""Number of choices that are recomputed before the verifier looks whether it shall end."""

_CONTENT = "content"
"""Name of the check that compares the visible part of an answer with its tokens."""
_REQUEST = "request"
"""Name of the check that compares the answer with the request."""
_UNUSED_ENVIRONMENT = "arithmetic"
"""Environment of the recipe with which answers are checked. No check that runs on an answer reads it."""


class BadAnswer(InvalidInput):
    """The file is not an answer of `muster serve`."""

    code = "bad-answer"
    default_hint = "save the whole JSON answer of `muster serve`, or the chunk of a stream that has the field `muster`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of `muster serve`.

    Args:
        record: Its field `muster`.
        shown: Its other fields, as the client sees them, without those that are null.
    """

    record: AnswerRecord
    shown: Mapping[str, JsonValue]

    @property
    def is_chunk(self) -> bool:
        """Whether the answer is the last chunk of a stream, which has only a part of the text."""
        kind = self.shown.get("object")
        return kind == "chat.completion.chunk" or (kind == "text_completion" and "usage" not in self.shown)

    @classmethod
    def parse(cls, content: bytes) -> Answer:
        """Parses an answer's JSON.

        Raises:
            BadAnswer: It is too long, not JSON, or not an answer with a valid field `muster`.
        """
        if len(content) > MOST_BYTES:
            raise BadAnswer(f"the answer has {len(content)} bytes; the limit is {MOST_BYTES}")
        try:
            value = json.loads(content)
            shown = _without_nulls(value)
        except (ValueError, RecursionError) as error:
            raise BadAnswer(f"the answer is not JSON: {error}") from None
        if not isinstance(shown, dict) or "muster" not in shown:
            raise BadAnswer("the answer has no field `muster`")
        try:
            record = AnswerRecord.model_validate(value["muster"])
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            path = ".".join(str(part) for part in first["loc"])
            raise BadAnswer(f"muster.{path}: {first['msg']}") from None
        for number, sample in enumerate(record.samples):
            if sample.sample != number or sample.prompt >= len(record.prompts):
                raise BadAnswer(f"sample {number} of the answer has another number, or a prompt that is missing")
        if unused := set(range(len(record.prompts))) - {sample.prompt for sample in record.samples}:
            raise BadAnswer(f"no sample of the answer has the prompt {min(unused)}")
        return cls(record=record, shown=shown)


def _without_nulls(value: JsonValue) -> JsonValue:
    """Returns a JSON value without fields that are null: OpenAI's client adds such fields to an answer."""
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def verify_answer(
    answer: Answer,
    folder: Path,
    *,
    request: bytes | None = None,
    allow_missing_proofs: bool = False,
    allow_chunk: bool = False,
    calibration: RolloutCalibration | None = None,
    dtype: Dtype | None = None,
    device: torch.device | None = None,
    engine: EngineName | None = None,
    vllm: VllmPlace | None = None,
) -> Verification:
    """Checks an answer against the folder of its version.

    The answer is genuine if the verification is `complete` and not `rejected`. It is not complete if the service chose
    an arithmetic without limits, left proofs out, or returned a chunk, because it could then forge any token.

    Args:
        answer: The answer, by an untrusted service.
        folder: The version's folder, which needs no recipe.
        request: Body of the request that the client sent; None to believe the answer's prompts and parameters.
        allow_missing_proofs: Whether an answer without proofs may be complete.
        allow_chunk: Whether the last chunk of a stream may be complete, whose text is not compared with its tokens.
        calibration: As for `verify_file`, like the following arguments.
        dtype: Data type of torch's prefill.
        device: Device of torch's prefill.
        engine: Engine of the prefill.
        vllm: The vLLM installation to use.

    Raises:
        BadAnswer: A value of the answer is impossible.
        InvalidInput: The folder is another version, or this machine can't recompute the answer.
        BadVersionFolder: The folder is not a usable version.
        OutOfMemory: The weights do not fit into memory.
        NotFound: vLLM is not installed at the given place.
        EngineFailed: vLLM failed.
    """
    with AnswerVerifier(
        folder, calibration=calibration, dtype=dtype, device=device, engine=engine, vllm=vllm
    ) as verifier:
        return verifier.verify(
            answer, request=request, allow_missing_proofs=allow_missing_proofs, allow_chunk=allow_chunk
        )


class AnswerVerifier:
    """Checks answers against one folder; loads the weights at the first answer, and keeps them until `close`.

    Args:
        folder: The version's folder, which needs no recipe.
        calibration: As for `verify_answer`, like the following arguments.
        dtype: Data type of torch's prefill.
        device: Device of torch's prefill.
        engine: Engine of the prefill.
        vllm: The vLLM installation to use.

    Raises:
        BadVersionFolder: The folder is not a usable version.
    """

    def __init__(
        self,
        folder: Path,
        *,
        calibration: RolloutCalibration | None = None,
        dtype: Dtype | None = None,
        device: torch.device | None = None,
        engine: EngineName | None = None,
        vllm: VllmPlace | None = None,
    ) -> None:
        self._folder = folder
        self._model = read_model(folder)
        self.digest = digest_of(folder)
        self._tokenizer = FolderTokenizer(folder)
        self._environment = load_environment(_UNUSED_ENVIRONMENT)
        self._calibration = calibration or RolloutCalibration.shipped()
        self._dtype = dtype
        self._device = device
        self._engine = engine
        self._vllm = vllm
        self._opened = ExitStack()
        self._recomputer: Recomputer | None = None
        self._made_in: Arithmetic | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the weights, and ends a vLLM process."""
        self._recomputer = None
        self._opened.close()

    def verify(
        self,
        answer: Answer,
        *,
        request: bytes | None = None,
        most_new_tokens: int | None = None,
        allow_missing_proofs: bool = False,
        allow_chunk: bool = False,
        proceed: Callable[[], None] = lambda: None,
    ) -> Verification:
        """Checks an answer: see `verify_answer`, also for the errors.

        Args:
            answer: The answer, by an untrusted service.
            request: Body of the request that the client sent.
            most_new_tokens: Limit of new tokens if the request names none; see `request_differences`.
            allow_missing_proofs: Whether an answer without proofs may be complete.
            allow_chunk: Whether the last chunk of a stream may be complete.
            proceed: Function that is called before each computation and raises an error to end the verification.
        """
        record = answer.record
        try:
            made_in, parameters = Arithmetic.parse(record.arithmetic), sampling_of(record.sampling)
            completions = [completion_of(sample, record.version) for sample in record.samples]
        except (ValueError, InvalidInput) as error:
            raise BadAnswer(f"a value of the answer is impossible: {error}") from None
        version = self._version_for(record)
        file = RolloutFile(
            unleased_header(arithmetic=made_in, checkpoint=record.version),
            tuple(
                unrewarded_sample(one, prompt=record.prompts[sample.prompt], group=sample.prompt)
                for one, sample in zip(completions, record.samples, strict=True)
            ),
        )
        verifier = verifying_arithmetic(made_in, dtype=self._dtype, engine=self._engine)
        limits = limits_of(file, version, calibration=self._calibration, verifier=verifier)
        case = CheckInput(file=file, facts=SlotFacts.of_file(file), version=version, limits=limits)
        results = [run_check(check, case) for check in (bounds.CHECK, termination.CHECK)]
        has_proofs = all(sample.proofs is not None for sample in record.samples)
        needed = {_CONTENT, *(check.name for check in PREFILL_CHECKS)}
        if allow_missing_proofs and not has_proofs:
            needed.remove(computation.CHECK.name)
        if allow_chunk and answer.is_chunk:
            needed.remove(_CONTENT)
        if request is not None:
            results.append(_check_request(request, record, version, most_new_tokens=most_new_tokens))
        if not fits_model(case):
            skipped = "not run, because tokens or lengths are out of bounds"
            results += [unknown(name, skipped) for name in (_CONTENT, *(check.name for check in PREFILL_CHECKS))]
            return Verification(file=file, results=tuple(results), limits=limits, needed=frozenset(needed))
        results.append(_check_content(answer, completions, version))
        proceed()
        recomputer = self._recomputer_for(version, verifier, made_in=made_in)
        draws = Draws(seed=record.seed_bytes, parameters=parameters)
        evidence: dict[int, RowEvidence] = {}
        for first in range(0, len(file.samples), _ROWS_AT_ONCE):
            proceed()
            rows = range(len(file.samples))[first : first + _ROWS_AT_ONCE]
            evidence |= recomputer.evidence(file, dict.fromkeys(rows, draws))
        case = replace(case, evidence=evidence)
        for check in PREFILL_CHECKS:
            if check is computation.CHECK and not has_proofs:
                results.append(
                    unknown(check.name, "the answer has no proofs: the service was started with --no-proofs")
                )
            else:
                results.append(run_check(check, case))
        return Verification(file=file, results=tuple(results), limits=limits, needed=frozenset(needed))

    def _recomputer_for(self, version: CheckedVersion, verifier: Arithmetic, *, made_in: Arithmetic) -> Recomputer:
        """Returns the open recomputer, or opens one if the former was for another arithmetic."""
        if self._recomputer is None or self._made_in != made_in:
            self.close()
            self._recomputer = self._opened.enter_context(
                open_recomputer(version, verifier, made_in=made_in, device=self._device, vllm=self._vllm)
            )
            self._made_in = made_in
        return self._recomputer

    def _version_for(self, record: AnswerRecord) -> CheckedVersion:
        """Returns the version with a recipe that has the answer's sampling parameters."""
        if self.digest != record.version:
            raise InvalidInput(
                f"{self._folder} is not the answer's version: the answer names {record.version}, the folder is "
                f"{self.digest}",
                hint="name the folder of the version that answered; an update of the service's weights changes its "
                "version",
            )
        try:
            recipe = Recipe(
                environment=EnvironmentChoice(name=self._environment.name, version=self._environment.version),
                sampling=SamplingChoice.model_validate(record.sampling.model_dump()),
                group_size=len(record.samples),
                max_prompt_tokens=max(len(tokens) for tokens in record.prompts),
                prompts=PromptRange(count=1),
            )
        except ValidationError as error:
            raise BadAnswer(f"a value of the answer is impossible: {error.errors()[0]['msg']}") from None
        return CheckedVersion(
            digest=self.digest,
            folder=self._folder,
            recipe=recipe,
            environment=self._environment,
            planner=SlotPlanner(
                recipe=recipe, eligible=range(1), environment=self._environment, tokenizer=self._tokenizer
            ),
            model=self._model,
            tokenizer=self._tokenizer,
        )


def digest_of(folder: Path) -> Digest:
    """Returns the digest of a version's folder.

    Raises:
        BadVersionFolder: The folder is not a version.
    """
    try:
        return version_digest(folder_files(folder))
    except (MusterError, OSError) as error:
        raise BadVersionFolder(f"{folder} is not a version: {error}") from error


def _check_request(
    request: bytes, record: AnswerRecord, version: CheckedVersion, *, most_new_tokens: int | None
) -> CheckResult:
    """Compares the record with the request: prompts, parameters, number of choices, and the seed if it names one."""
    try:
        found = request_differences(request, record, version, most_new_tokens=most_new_tokens)
    except InvalidRequest as error:
        raise InvalidInput(f"the request is not valid: {error.detail}", hint="give the body that was sent") from None
    findings = [CheckFinding(reason=ReasonCode.SEED_PROMPTS, what=what) for what in found]
    return concluded(_REQUEST, findings, fails=Fails.EXACT)


def _check_content(answer: Answer, completions: Sequence[Completion], version: CheckedVersion) -> CheckResult:
    """Compares all that the client sees of the choices with the answer that the record gives."""
    if answer.is_chunk:
        return unknown(_CONTENT, "the file is a chunk of a stream, which has only a part of the text")
    findings = [
        CheckFinding(reason=ReasonCode.FORMAT_SCHEMA, what=what, row=row, sample=row)
        for row, what in _differences(answer, completions, version)
    ]
    return concluded(_CONTENT, findings, fails=Fails.EXACT)


def _differences(
    answer: Answer, completions: Sequence[Completion], version: CheckedVersion
) -> Iterator[tuple[int | None, str]]:
    shown, record = answer.shown, answer.record
    kind = shown.get("object")
    if kind not in (None, "text_completion", "chat.completion"):
        yield None, f"the object {kind!r:.40} is no answer of the service"
        return
    written = sum(len(one.tokens) for one in completions)
    if shown.get("usage") != usage_of(sum(len(tokens) for tokens in record.prompts), written):
        yield None, "the usage is not that of the record"
    choices = shown.get("choices")
    if not isinstance(choices, list) or len(choices) != len(completions):
        yield None, f"the answer does not have the choices 0 to {len(completions) - 1}"
        return
    for row, (found, one) in enumerate(zip(choices, completions, strict=True)):
        if not isinstance(found, dict):
            yield row, "the choice is no object"
            continue
        wanted: Any = _without_nulls(_choice(kind, one, version, logprobs="logprobs" in found))
        if others := [f"{name!r:.40}" for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]:
            yield row, f"fields of the choice are not those of the record: {', '.join(others[:5])}"


def _choice(kind: object, one: Completion, version: CheckedVersion, *, logprobs: bool) -> dict[str, Any]:
    """Returns a choice as the service writes it."""
    if kind is None:
        return generated_choice(whole_choice(one, None, with_pieces=False), logprobs=logprobs)
    form = ReplyFormat(
        identifier="", created=0, model="", chat=kind == "chat.completion", logprobs=logprobs, fingerprint=""
    )
    return form.choice(whole_choice(one, version.tokenizer, with_pieces=logprobs))
