"""What a trainer learns from an accepted file: every file that validators accept and pay for is usable."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, cast

import numpy as np
import pytest

from protocol.identifiers import ZERO_DIGEST, digest, run_id
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease
from protocol.wire.audits import AuditFile
from protocol.wire.leases import SignedLease
from protocol.wire.slots import SlotGrant
from rollouts.dialogue.formats import FormatName
from rollouts.errors import NotDecoded
from rollouts.files import schema
from rollouts.files.samples import MOST_LOG_PROBABILITY, RolloutFile, Sample
from rollouts.files.schema import write_rollouts
from rollouts.recipe import DialogueChoice, LengthTargets
from rollouts.sandbox import Job, JobEnding, JobKind, JobOutcome, Sandboxes, SandboxUnavailable
from rollouts.sandbox.decoder import Decoder
from rollouts.turns import Turn
from tests.kit.memory_run_ledger import RUN
from tests.kit.tiny_model import VOCABULARY
from tests.kit.trained_pool import RECIPE, audit_of, decoder, file_of, half_right
from trainer.run.gathering.batches import SeenFile
from trainer.run.gathering.rollout_files import FileRules, UnusableFile, read_accepted
from trainer.run.state.journal import JournalFile

NODE, VALIDATOR, ORCHESTRATOR = Key.generate(), Key.generate(), Key.generate()
LEASE = Lease(
    pool_id=1,
    run=run_id(RUN),
    step=3,
    index=0,
    node=NODE.address,
    version=3,
    digest=digest(b"\x03" * 32),
    beacon_block=1,
    salt=digest(b"\x05" * 32),
    groups=2,
    max_units=1000,
    expiry=1 << 40,
)
DOMAIN = SigningDomain(1, NODE.address)
RULES = FileRules(run=run_id(RUN), recipe=RECIPE, vocabulary=VOCABULARY, context=64, most_bytes=1 << 20)


def learned(
    folder: Path,
    change: Callable[[RolloutFile], RolloutFile] = lambda file: file,
    *,
    by: Decoder | None = None,
    audit: Callable[[AuditFile], AuditFile] = lambda audit: audit,
    spelt: Callable[[bytes], bytes] = lambda content: content,
    rules: FileRules = RULES,
) -> SeenFile:
    """Returns the learned groups of a file that a node made, that was then changed and still accepted."""
    signed = SignedLease.of(LEASE, domain=DOMAIN, signature=LEASE.sign(ORCHESTRATOR, DOMAIN))
    grant = SlotGrant(lease=signed, beacon=ZERO_DIGEST)
    file = change(file_of(grant, half_right))
    path, audit_path = folder / "file", folder / "audit"
    write_rollouts(path, file)
    sha256 = digest(hashlib.sha256(path.read_bytes()).digest())
    content = spelt(audit(audit_of(grant, file, sha256, VALIDATOR, half_right)).encode())
    audit_path.write_bytes(content)
    entry = JournalFile(
        key=LEASE.key.hash,
        sha256=sha256,
        audit=digest(hashlib.sha256(content).digest()),
        node=LEASE.node,
        index=LEASE.index,
        version=LEASE.version,
        checkpoint=LEASE.digest,
        groups=LEASE.groups,
    )
    return read_accepted(path, audit_path, entry=entry, step=LEASE.step, rules=rules, decoder=by or decoder())


def with_first_logprob(file: RolloutFile, value: float) -> RolloutFile:
    first: Sample = file.samples[0]
    logprobs = first.logprobs.copy()
    logprobs[0] = value
    return RolloutFile(file.header, (replace(first, logprobs=logprobs), *file.samples[1:]))


def test_another_build_of_the_environment_is_accepted_and_another_version_is_refused(tmp_path: Path) -> None:
    built = learned(
        tmp_path, lambda file: RolloutFile(replace(file.header, environment_version="1+py3.11.0ada8d61"), file.samples)
    )
    assert all(seen.group is not None for seen in built.groups)
    with pytest.raises(UnusableFile, match="environment version is 2"):
        learned(tmp_path, lambda file: RolloutFile(replace(file.header, environment_version="2+x"), file.samples))


def test_a_log_probability_above_zero_within_rounding_is_learned_as_zero(tmp_path: Path) -> None:
    seen = learned(tmp_path, lambda file: with_first_logprob(file, MOST_LOG_PROBABILITY / 2))
    assert seen.groups[0].group is not None
    assert np.all(seen.groups[0].group.samples[0].logprobs <= 0)
    with pytest.raises(UnusableFile, match="above zero"):
        learned(tmp_path, lambda file: with_first_logprob(file, MOST_LOG_PROBABILITY * 2))


class Scripted:
    """A decoder with scripted outcomes."""

    def __init__(self, *outcomes: JobOutcome) -> None:
        self._outcomes = list(outcomes)

    def run(self, kind: JobKind, job: Job) -> JobOutcome:
        if not self._outcomes:
            raise SandboxUnavailable("a sandbox has ended")
        return self._outcomes.pop(0)


def ended(ending: JobEnding, code: int = 0) -> JobOutcome:
    return JobOutcome(ending=ending, exit_code=code, output=b"", errors=b"", answer=b"", cpu=timedelta())


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([ended(JobEnding.KILLED)] * 2, "decoder-crashed"),
        ([ended(JobEnding.TOO_MUCH_OUTPUT)] * 2, "beyond-limits"),
        ([ended(JobEnding.EXITED, 1)], "decoder-failed"),
    ],
)
def test_an_undecodable_file_is_dropped_and_the_process_continues(
    tmp_path: Path, outcomes: list[JobOutcome], code: str
) -> None:
    with pytest.raises(UnusableFile) as refused:
        learned(tmp_path, by=Decoder(cast("Sandboxes", Scripted(*outcomes))))
    assert refused.value.code == code


def test_a_missing_sandbox_is_retryable_and_not_blamed_on_the_file(tmp_path: Path) -> None:
    with pytest.raises(NotDecoded) as raised:
        learned(tmp_path, by=Decoder(cast("Sandboxes", Scripted())))
    assert (raised.value.code, raised.value.retryable) == ("no-sandbox", True)


def test_no_parquet_file_is_decoded_in_the_process_with_the_publisher_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> NoReturn:
        raise AssertionError("decoded in the trainer's own process")

    monkeypatch.setattr(schema, "_read", never)
    assert learned(tmp_path).useful == 2


def test_the_distance_from_the_target_length_follows_from_the_validators_penalty(tmp_path: Path) -> None:
    wants = replace(RULES, recipe=RECIPE.model_copy(update={"length": LengthTargets(targets=(3,), alpha=0.1)}))

    def two_off(file: RolloutFile) -> RolloutFile:
        """Makes each row two tokens off the target."""
        samples = [
            replace(one, length_penalty=0.2, reward=one.task_reward - 0.2, target_length=3) for one in file.samples
        ]
        return RolloutFile(file.header, tuple(samples))

    def two_and_undecided(audit: AuditFile) -> AuditFile:
        """Returns the validator's rows for the same; one row of the second group is undecided."""
        rows = [
            row.model_copy(update={"length_penalty": 0.2, "reward": row.task - 0.2})
            for row in audit.rows
            if row.task is not None
        ]
        rows[-1] = rows[-1].model_copy(update={"task": None, "length_penalty": None, "reward": None})
        return audit.model_copy(update={"rows": tuple(rows)})

    first, last = learned(tmp_path, two_off, audit=two_and_undecided, rules=wants).groups
    assert first.distance == pytest.approx(2.0)
    assert last.distance is None
    assert {seen.distance for seen in learned(tmp_path, lambda file: file).groups} == {None}


def with_row(audit: AuditFile, row: int, **values: float | None) -> AuditFile:
    """Returns the audit file with other values in one row."""
    rows = list(audit.rows)
    rows[row] = rows[row].model_copy(update=values)
    return audit.model_copy(update={"rows": tuple(rows)})


def inverted(audit: AuditFile) -> AuditFile:
    """Inverts the rewards."""
    rows = [
        row.model_copy(update={"task": 1.0 - row.task, "reward": 1.0 - row.task})
        for row in audit.rows
        if row.task is not None
    ]
    return audit.model_copy(update={"rows": tuple(rows)})


@pytest.mark.parametrize(
    ("audit", "found"),
    [
        (inverted, "row 0 has the reward 1.0 in the file and 0.0 in its audit"),
        (lambda audit: with_row(audit, 5, reward=1e6), "row 5 has the reward .* and 1000000.0 in its audit"),
        (lambda audit: with_row(audit, 5, reward=-1e30), "row 5 has the reward .* and -1e[+]30 in its audit"),
        (lambda audit: with_row(audit, 5, task=0.5), "row 5 has the task reward .* and 0.5 in its audit"),
        (lambda audit: with_row(audit, 5, length_penalty=-1.0), "row 5 has the length penalty 0.0 .* and -1.0 in its"),
        (
            lambda audit: with_row(audit, 5, reward=math.nextafter(0.0, 1.0)),
            "row 5 has the reward 0.0 .* and 5e-324 in",
        ),
        (lambda audit: with_row(audit, 5, task=None, reward=7.0), "row 5 has the reward .* and 7.0 in its audit"),
    ],
)
def test_a_file_whose_rewards_differ_from_its_audit_file_is_unusable(
    tmp_path: Path, audit: Callable[[AuditFile], AuditFile], found: str
) -> None:
    with pytest.raises(UnusableFile, match=found) as refused:
        learned(tmp_path, audit=audit)
    assert refused.value.code == "other-rewards"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_non_finite_reward_makes_the_file_unusable(tmp_path: Path, word: str) -> None:
    """This project's encoder refuses to write non-finite numbers; another validator's may not."""

    def spelt(content: bytes) -> bytes:
        assert content.count(b'"reward":1.0') > 0
        return content.replace(b'"reward":1.0', b'"reward":' + word.encode(), 1)

    with pytest.raises(UnusableFile) as refused:
        learned(tmp_path, spelt=spelt)
    assert refused.value.code in {"other-rewards", "bad-audit-file"}


def test_undecided_rows_drop_only_their_own_groups(tmp_path: Path) -> None:
    """A corrupt validator that accepts a file can only leave groups out, not change them."""
    seen = learned(tmp_path, audit=lambda audit: with_row(audit, 0, task=None, length_penalty=None, reward=None))
    assert [one.group is None for one in seen.groups] == [True, False]


TALKS = replace(
    RULES,
    context=24,
    recipe=RECIPE.model_copy(
        update={"length": None, "dialogue": DialogueChoice(format=FormatName.PLAIN, turns=3, reply_tokens=4)}
    ),
)


def with_turns(*turns: tuple[int, int], token: int = 5) -> Callable[[RolloutFile], RolloutFile]:
    """Makes every row a dialogue whose turns have these numbers of drawn and given tokens."""

    def change(file: RolloutFile) -> RolloutFile:
        drawn = sum(count for count, _ in turns)
        samples = [
            replace(
                one,
                output_tokens=np.full(drawn, 6, np.int32),
                logprobs=np.full(drawn, -1.0, np.float32),
                turns=tuple(Turn(count, np.full(given, token, np.int32)) for count, given in turns),
            )
            for one in file.samples
        ]
        return RolloutFile(file.header, tuple(samples))

    return change


def test_the_turns_of_a_dialogue_are_learned(tmp_path: Path) -> None:
    seen = learned(tmp_path, with_turns((2, 4), (1, 1), (2, 0)), rules=TALKS)
    assert seen.tokens == 5 * len(seen.groups) * RECIPE.group_size, "units are drawn tokens"
    for one in seen.groups:
        assert one.group is not None
        for sample in one.group.samples:
            assert [(turn.drawn, turn.given.tolist()) for turn in sample.turns] == [(2, [5] * 4), (1, [5]), (2, [])]


@pytest.mark.parametrize(
    ("change", "rules", "found"),
    [
        (lambda file: file, TALKS, "row 0 has 0 turns, and the recipe has dialogues"),
        (with_turns((2, 0)), RULES, "row 0 has 1 turns, and the recipe has single answers"),
        (with_turns((1, 1), (1, 1), (1, 1), (1, 0)), TALKS, "row 0 has 4 turns, above the limit of 3"),
        (with_turns((1, 5), (1, 0)), TALKS, "row 0 has 5 tokens between two turns, above the limit of 4"),
        (with_turns((1, 1), (1, 1)), TALKS, "tokens are given after the last turn"),
        (with_turns((1, 0), (1, 0)), TALKS, "no token is given between two turns"),
        (with_turns((1, 1), (1, 0), token=VOCABULARY), TALKS, "row 0 has a token that the model lacks"),
        (with_turns((1, 1), (1, 0), token=-1), TALKS, "row 0 has a token that the model lacks"),
        (with_turns((1, 1), (1, 0)), replace(TALKS, context=3), "and 3 tokens after them: .* and the model 3 in total"),
    ],
)
def test_turns_that_the_recipe_forbids_make_the_file_unusable(
    tmp_path: Path, change: Callable[[RolloutFile], RolloutFile], rules: FileRules, found: str
) -> None:
    with pytest.raises(UnusableFile, match=found):
        learned(tmp_path, change, rules=rules)
