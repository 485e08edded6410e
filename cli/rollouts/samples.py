"""Implements `muster rollouts show`; this module does not import torch, which would take seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cli.output.printing import note, say, show_fields, show_json
from protocol.errors import InvalidInput
from protocol.identifiers import ZERO_DIGEST
from protocol.runtime.extras import require_extra
from rollouts.errors import BadRolloutFile
from rollouts.files.limits import ReadLimits
from rollouts.files.samples import RolloutFile, Sample
from rollouts.sandbox import Sandboxes
from rollouts.sandbox.decoder import Decoder
from rollouts.turns import by_turn

if TYPE_CHECKING:
    from rollouts.models.text_decoder import TextDecoder

READ_LIMITS = ReadLimits(rows=1 << 18, decoded_bytes=512 << 20)
"""Limits of a file: about 30 million tokens. To decode them takes at most 4 GiB of memory and 90 seconds."""


def show_samples(file: Path, *, model: Path | None, ids: bool, group: int | None, limit: int, as_json: bool) -> None:
    """Prints samples; implements `muster rollouts show`.

    Raises:
        InvalidInput: The file is not a rollout file or has no such group, or neither `model` nor `ids` is given.
        MissingExtra: The extra `rollouts`, from which the sandbox takes its packages, is not installed.
    """
    require_extra("rollouts")
    if model is None and not ids:
        raise InvalidInput(
            f"{file} holds token ids, and no tokenizer is given to decode them",
            hint="name the version's folder with --model, or print token ids with --ids",
        )
    found = _read(file)
    decoder = None if model is None or ids else _text_decoder(model)
    chosen = [sample for sample in found.samples if group is None or sample.group == group]
    if not chosen:
        raise InvalidInput(f"there is no group {group} in {file}", hint="omit --group to see all groups")
    shown = [_sample(sample, decoder) for sample in chosen[:limit]]
    if as_json:
        show_json({"header": found.header, "units": found.units, "samples": shown})
        return
    show_fields(header_fields(found))
    for sample, one in zip(chosen, shown, strict=False):
        say("")
        say(_title(sample))
        say(f"  prompt  {one['prompt']!r}")
        for label, text in _lines(sample, decoder):
            say(f"  {label:<6}  {text!r}")
    if len(chosen) > limit:
        note(f"{len(chosen) - limit} more samples; --limit shows them")


def _text_decoder(model: Path) -> TextDecoder:
    from rollouts.models.text_decoder import TextDecoder  # noqa: PLC0415 - `--ids` needs no tokenizers

    return TextDecoder(model)


@contextmanager
def decoder_in_sandbox() -> Iterator[Decoder]:
    """Yields a sandboxed decoder, because an untrusted file of 12 kB can decompress to 100 GB."""
    with closing(Sandboxes()) as sandboxes:
        yield Decoder(sandboxes)


def header_fields(file: RolloutFile) -> dict[str, object]:
    """Returns what the commands print about a whole file."""
    header = file.header
    rewards = [sample.reward for sample in file.samples]
    if header.run == ZERO_DIGEST:  # an answer of `muster serve`
        return {
            "version": header.checkpoint,
            "made by": str(header.arithmetic),
            "answers": f"{len(file.samples)} to {len({sample.group for sample in file.samples})} prompts",
            "tokens": file.units,
        }
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


def _read(path: Path) -> RolloutFile:
    size = path.stat().st_size
    if size > READ_LIMITS.file_bytes:
        raise InvalidInput(f"{path} has {size} bytes, more than {READ_LIMITS.file_bytes}")
    try:
        with decoder_in_sandbox() as decoder:
            return decoder.decode(path.read_bytes(), limits=READ_LIMITS)
    except BadRolloutFile as error:
        raise InvalidInput(f"{path} is no rollout file: {error.detail}") from error


def _sample(sample: Sample, decoder: TextDecoder | None) -> dict[str, object]:
    shown: dict[str, object] = {
        "group": sample.group,
        "sample": sample.sample,
        "prompt_index": sample.prompt_index,
        "prompt": _words(sample.prompt_tokens.tolist(), decoder),
    }
    if sample.turns:
        shown["turns"] = [
            {
                "message": _words(drawn.tolist(), decoder),
                "tokens": len(drawn),
                "reply": _words(given.tolist(), decoder),
                "given_tokens": len(given),
            }
            for drawn, given in by_turn(sample.output_tokens, sample.turns)
        ]
    else:
        shown["answer"] = _words(sample.output_tokens.tolist(), decoder)
    return shown | {
        "tokens": len(sample.output_tokens),
        "finish": sample.finish,
        "task_reward": sample.task_reward,
        "length_penalty": sample.length_penalty,
        "reward": sample.reward,
        "target_length": sample.target_length,
        "mean_logprob": float(sample.logprobs.mean()) if len(sample.logprobs) else None,
    }


def _lines(sample: Sample, decoder: TextDecoder | None) -> Iterator[tuple[str, str]]:
    """Yields label and text of the answer, or of each message of a dialogue and its reply."""
    if not sample.turns:
        yield "answer", _words(sample.output_tokens.tolist(), decoder)
    for number, (drawn, given) in enumerate(by_turn(sample.output_tokens, sample.turns)):
        yield f"turn {number}", _words(drawn.tolist(), decoder)
        if len(given):
            yield "reply", _words(given.tolist(), decoder)


def _words(tokens: list[int], decoder: TextDecoder | None) -> str:
    """Returns the decoded text, or the token ids if there is no decoder or an id is negative."""
    if decoder is not None and all(token >= 0 for token in tokens):
        return decoder.decode(tokens)
    return " ".join(map(str, tokens))


def _title(sample: Sample) -> str:
    target = "" if sample.target_length is None else f", target {sample.target_length}"
    penalty = f" - {sample.length_penalty:g}" if sample.length_penalty else ""
    earned = f"reward {sample.reward:g} (task {sample.task_reward:g}{penalty})"
    turns = f" in {len(sample.turns)} turns" if sample.turns else ""
    length = f"{len(sample.output_tokens)} tokens{turns}{target}, ended by {sample.finish.value}"
    return f"group {sample.group}, sample {sample.sample}: {earned}, {length}, prompt {sample.prompt_index}"
