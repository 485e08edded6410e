"""Reads an accepted rollout file and its audit file into training groups.

The trainer trusts neither the node that wrote the file nor the validator that accepted it. The file is decoded in a
sandbox, because this process holds the publisher's key. The trainer then compares the file's content with lease, recipe
and audit file, and the rewards in the file with those in the audit file. A file that fails a check is dropped without
affecting others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from protocol.errors import InvalidInput
from protocol.identifiers import Address, Digest
from protocol.verdicts import Outcome
from protocol.wire.audits import LARGEST_AUDIT_FILE, AuditFile, AuditRow
from rollouts.environments import is_solved
from rollouts.errors import BadRolloutFile, NotDecoded
from rollouts.files.limits import ReadLimits
from rollouts.files.samples import MOST_LOG_PROBABILITY, RolloutFile, Sample, SlotHeader
from rollouts.recipe import Recipe
from rollouts.sandbox.decoder import Decoder
from rollouts.turns import given_tokens, turns_fault
from trainer.learning.groups import TrainingGroup, TrainingSample
from trainer.run.gathering.batches import SeenFile, SeenGroup
from trainer.run.state.journal import JournalFile

_BYTES_PER_TOKEN = 64
"""Decoded bytes allowed per value of a row: a prompt token, an output token, a log-probability, a given token or a
number of a turn. The other columns count as 4,096 values."""


class UnusableFile(InvalidInput):
    """An accepted file fails a check, so the trainer does not use it."""

    code = "unusable-file"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """Rules that every file of a run must satisfy.

    Args:
        run: The run's id.
        recipe: Recipe of the base; environment, sampling and group size are the same for every version.
        vocabulary: Size of the vocabulary; all token ids are below it.
        context: Maximum tokens of prompt and answer together; in a dialogue, also of the tokens given between turns.
        most_bytes: Maximum size of a file.
    """

    run: Digest
    recipe: Recipe
    vocabulary: int
    context: int
    most_bytes: int

    def limits(self, groups: int) -> ReadLimits:
        """Returns the decoding limits of a file with this number of groups."""
        rows, dialogue = groups * self.recipe.group_size, self.recipe.dialogue
        longest = max(self.recipe.max_prompt_tokens, self.recipe.sampling.max_new_tokens)
        given = 0
        if dialogue is not None:
            longest = max(longest, dialogue.turns, dialogue.reply_tokens)
            given = 2 * dialogue.turns + min(self.recipe.most_given_tokens, self.context)
        decoded = rows * (self.recipe.max_prompt_tokens + 2 * longest + given + 4096) * _BYTES_PER_TOKEN
        return ReadLimits(file_bytes=self.most_bytes, rows=rows, decoded_bytes=decoded, tokens=longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader:
    """Reads accepted files of a run.

    Args:
        rules: Rules that every file must satisfy.
        decoder: Sandboxed decoder of untrusted files.
    """

    rules: FileRules
    decoder: Decoder

    def read(self, path: Path, audit_path: Path, *, entry: JournalFile, step: int) -> SeenFile:
        """Reads a file and its audit file (`read_accepted`)."""
        return read_accepted(path, audit_path, entry=entry, step=step, rules=self.rules, decoder=self.decoder)


def read_accepted(
    path: Path, audit_path: Path, *, entry: JournalFile, step: int, rules: FileRules, decoder: Decoder
) -> SeenFile:
    """Reads a file and its audit file.

    The caller has verified the hashes of both files against the ledger.

    Args:
        path: Path of the file.
        audit_path: Path of the audit file.
        entry: Journal entry with the values from ledger and lease.
        step: Number of the step.
        rules: Rules that the file must satisfy.
        decoder: Sandboxed decoder of untrusted files.

    Raises:
        UnusableFile: The file does not match its lease or audit file, or can never be decoded.
        NotDecoded: The file can't be decoded on this machine now.
        OSError: The file can't be read now.
    """
    try:
        file = decoder.decode(_content(path, rules.most_bytes), limits=rules.limits(entry.groups))
        _check_header(file.header, entry, step, rules)
        audit = _read_audit(audit_path, entry, step)
        groups = _groups(file, audit, entry, rules)
    except NotDecoded as error:
        if error.retryable:
            raise
        raise UnusableFile(f"the file of {entry.key}: {error.detail}", code=error.code, hint=error.hint) from error
    except BadRolloutFile as error:
        raise UnusableFile(f"the file of {entry.key}: {error.detail}", code=error.code) from error
    except InvalidInput as error:
        raise UnusableFile(f"{entry.key}: {error.detail}", code=error.code) from error
    return SeenFile(entry=entry, groups=groups, tokens=file.units)


def _content(path: Path, most: int) -> bytes:
    if (size := path.stat().st_size) > most:
        raise UnusableFile(f"its file has {size} bytes, above the limit of {most}", code="file-too-large")
    return path.read_bytes()


def _check_header(header: SlotHeader, entry: JournalFile, step: int, rules: FileRules) -> None:
    environment = rules.recipe.environment
    pairs = {
        "run": (header.run, rules.run),
        "step": (header.step, step),
        "index": (header.index, entry.index),
        "node": (header.node, entry.node),
        "checkpoint": (header.checkpoint, entry.checkpoint),
        "environment": (header.environment, environment.name),
        # The part after `+` is the node's build, which a recipe need not name.
        "environment version": (header.environment_version.split("+")[0], environment.version.split("+")[0]),
    }
    for name, (said, wanted) in pairs.items():
        if said != wanted:
            raise UnusableFile(f"its {name} is {str(said)[:80]}, not {wanted}", code="other-slot")


def _read_audit(path: Path, entry: JournalFile, step: int) -> AuditFile:
    if path.stat().st_size > LARGEST_AUDIT_FILE:
        raise UnusableFile("its audit file is too large", code="bad-audit-file")
    audit = AuditFile.decode(path.read_bytes())
    pairs = {
        "key": (audit.key, entry.key),
        "sha256": (audit.sha256, entry.sha256),
        "outcome": (audit.outcome, Outcome.ACCEPTED),
        "step": (audit.step, step),
        "node": (audit.node, entry.node),
        "checkpoint": (audit.checkpoint, entry.checkpoint),
    }
    for name, (said, wanted) in pairs.items():
        if said != wanted:
            raise UnusableFile(f"the audit file says {name} {said}, not {wanted}", code="other-audit")
    return audit


def _groups(file: RolloutFile, audit: AuditFile, entry: JournalFile, rules: FileRules) -> tuple[SeenGroup, ...]:
    each = rules.recipe.group_size
    if len(file.samples) != entry.groups * each:
        raise UnusableFile(
            f"it has {len(file.samples)} rows, and its lease has {entry.groups} groups of {each} samples", code="rows"
        )
    judged = {row.row: row for row in audit.rows}
    if set(judged) != set(range(len(file.samples))) or len(judged) != len(audit.rows):
        raise UnusableFile("the audit file does not list every row once", code="other-audit")
    for row, sample in enumerate(file.samples):
        _check_rewards(sample, judged[row], audit.validator)
    numbered = enumerate(file.samples)
    found = [
        _group(number, list(rows), judged, entry, rules)
        for number, (_, rows) in enumerate(groupby(numbered, key=lambda pair: pair[0] // each))
    ]
    return tuple(found)


def _group(
    number: int,
    rows: Sequence[tuple[int, Sample]],
    judged: Mapping[int, AuditRow],
    entry: JournalFile,
    rules: FileRules,
) -> SeenGroup:
    first = rows[0][1]
    for row, sample in rows:
        audit = judged[row]
        same = sample.prompt_index == first.prompt_index and np.array_equal(sample.prompt_tokens, first.prompt_tokens)
        if sample.group != number or sample.sample != row or not same:
            raise UnusableFile(f"row {row} lacks the group, sample or prompt of its place in the slot", code="rows")
        if (audit.group, audit.sample, audit.prompt_index) != (sample.group, sample.sample, sample.prompt_index):
            raise UnusableFile(f"the audit file has another group, sample or prompt for row {row}", code="other-audit")
        _check_tokens(row, sample, rules)
    rewards = [judged[row].reward for row, _ in rows]
    tasks = [judged[row].task for row, _ in rows]
    if any(value is None for value in [*rewards, *tasks]):
        return SeenGroup(prompt_index=first.prompt_index, solved=None, group=None)
    group = TrainingGroup(
        work=entry.key,
        group=number,
        prompt_index=first.prompt_index,
        prompt_tokens=first.prompt_tokens,
        version=entry.version,
        samples=tuple(
            TrainingSample(
                output_tokens=sample.output_tokens,
                logprobs=np.minimum(sample.logprobs, 0),
                reward=reward,
                turns=sample.turns,
            )
            for (_, sample), reward in zip(rows, rewards, strict=True)
            if reward is not None
        ),
    )
    solved = sum(task is not None and is_solved(task) for task in tasks) / len(tasks)
    distance = _distance([judged[row].length_penalty for row, _ in rows], rules.recipe)
    return SeenGroup(prompt_index=first.prompt_index, solved=solved, group=group, distance=distance)


def _check_rewards(sample: Sample, judged: AuditRow, validator: Address) -> None:
    """Checks that the audit file's rewards for a row equal those in the file.

    A validator accepts a file only if its own scores equal the file's, to the last bit. So the audit of an accepted
    file can confirm a value or leave it undecided (None), and one corrupt validator can't choose what the run learns.
    """
    pairs = (
        ("reward", judged.reward, sample.reward),
        ("task reward", judged.task, sample.task_reward),
        ("length penalty", judged.length_penalty, sample.length_penalty),
    )
    for name, audited, written in pairs:
        if audited is not None and audited != written:  # NaN differs from every value, so it is refused
            raise UnusableFile(
                f"row {judged.row} has the {name} {written!r} in the file and {audited!r} in its audit by {validator}",
                code="other-rewards",
            )


def _distance(penalties: Sequence[float | None], recipe: Recipe) -> float | None:
    """Returns the mean distance from the target length, derived from the penalties: `alpha * |target - length|`."""
    known = [penalty for penalty in penalties if penalty is not None]
    if recipe.length is None or len(known) < len(penalties):
        return None
    return sum(known) / len(known) / recipe.length.alpha


def _check_tokens(row: int, sample: Sample, rules: FileRules) -> None:
    recipe = rules.recipe
    if not 1 <= len(sample.output_tokens) <= recipe.sampling.max_new_tokens or len(sample.prompt_tokens) < 1:
        raise UnusableFile(f"row {row} has {len(sample.output_tokens)} output tokens", code="rows")
    _check_turns(row, sample, recipe)
    after = len(sample.output_tokens) + given_tokens(sample.turns)
    longest = min(rules.context - after, recipe.max_prompt_tokens)
    if len(sample.prompt_tokens) > longest:  # prompt and answer would not fit into a row of the learner
        raise UnusableFile(
            f"row {row} has {len(sample.prompt_tokens)} prompt tokens and {after} tokens after them: the recipe allows "
            f"{recipe.max_prompt_tokens} in a prompt, and the model {rules.context} in total",
            code="rows",
        )
    for tokens in (sample.prompt_tokens, sample.output_tokens, *(turn.given for turn in sample.turns)):
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < rules.vocabulary:
            raise UnusableFile(f"row {row} has a token that the model lacks", code="rows")
    if float(sample.logprobs.max()) > MOST_LOG_PROBABILITY:
        raise UnusableFile(f"row {row} has a log-probability above zero", code="rows")


def _check_turns(row: int, sample: Sample, recipe: Recipe) -> None:
    """Checks a row's turns against the recipe; a validator has compared the given tokens with a replay."""
    dialogue = recipe.dialogue
    if dialogue is None or not sample.turns:
        if dialogue is not None or sample.turns:
            needed = "dialogues" if dialogue is not None else "single answers"
            raise UnusableFile(f"row {row} has {len(sample.turns)} turns, and the recipe has {needed}", code="turns")
        return
    if fault := turns_fault(sample.turns, drawn=len(sample.output_tokens)):
        raise UnusableFile(f"row {row}: {fault}", code="turns")
    if len(sample.turns) > dialogue.turns:
        raise UnusableFile(
            f"row {row} has {len(sample.turns)} turns, above the limit of {dialogue.turns}", code="turns"
        )
    if (most := max(len(turn.given) for turn in sample.turns)) > dialogue.reply_tokens:
        raise UnusableFile(
            f"row {row} has {most} tokens between two turns, above the limit of {dialogue.reply_tokens}", code="turns"
        )
