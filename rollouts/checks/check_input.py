"""The input of checks: a rollout file, facts of its slot and the policy version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import MusterError
from protocol.identifiers import Address, Digest
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease, WorkKey
from protocol.verdicts import ReasonCode
from rollouts.calibration.limits import CheckLimits
from rollouts.checks.evidence import Draws, RowEvidence, RowSpread
from rollouts.checks.result import CheckFinding
from rollouts.checks.served_rows import ServedRows, read_served
from rollouts.environments import load_environment
from rollouts.environments.validation import CheckedEnvironment
from rollouts.errors import BadVersionFolder
from rollouts.files.samples import RolloutFile
from rollouts.models.facts import ModelFacts, read_model
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlanner
from rollouts.recipe import Recipe, check_classes, eligible_prompts, read_recipe
from rollouts.seeds import slot_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedParts:
    """The parts of a slot's seed that the file does not contain.

    Args:
        chain_id: The chain of the pool's contracts.
        pool_id: The pool that leased the slot.
        beacon: The hash of the block that the lease names.
        salt: The lease's salt.
    """

    chain_id: int
    pool_id: int
    beacon: Digest
    salt: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """Facts of a slot, from its lease or, without a lease, from the file itself.

    Args:
        run: The run.
        step: The step of the run.
        index: The slot's number among this node's slots of the step.
        node: The node that holds the lease.
        digest: The version digest.
        groups: The number of groups in the slot.
        max_units: The lease's limit of work units; None without a lease.
        parts: Parts of the seed that are not in the fields above; None if unknown.
        units: The submitted work units; None if unknown.
        from_file: True if the fields `run` to `groups` come from the file itself, because there is no lease.
        domain: Chain and contract of the ledger that the lease is for; None without a lease.
    """

    run: Digest
    step: int
    index: int
    node: Address
    digest: Digest
    groups: int
    max_units: int | None
    parts: SeedParts | None
    units: int | None = None
    from_file: bool = False
    domain: SigningDomain | None = None

    @classmethod
    def of_lease(cls, lease: Lease, *, domain: SigningDomain, beacon: Digest, units: int | None = None) -> Self:
        """Returns the facts in a lease."""
        return cls(
            run=lease.run,
            step=lease.step,
            index=lease.index,
            node=lease.node,
            digest=lease.digest,
            groups=lease.groups,
            max_units=lease.max_units,
            parts=SeedParts(chain_id=domain.chain_id, pool_id=lease.pool_id, beacon=beacon, salt=lease.salt),
            units=units,
            domain=domain,
        )

    @classmethod
    def of_file(cls, file: RolloutFile, *, parts: SeedParts | None = None, units: int | None = None) -> Self:
        """Returns the facts in a file's own header, for use without a lease."""
        header = file.header
        return cls(
            run=header.run,
            step=header.step,
            index=header.index,
            node=header.node,
            digest=header.checkpoint,
            groups=len({sample.group for sample in file.samples}),
            max_units=None,
            parts=parts,
            units=units,
            from_file=True,
        )

    @property
    def work_key(self) -> Digest | None:
        """Key of the slot's work on the ledger; None if `parts` are unknown."""
        if self.parts is None:
            return None
        work = WorkKey(pool_id=self.parts.pool_id, run=self.run, node=self.node, step=self.step, index=self.index)
        return work.hash

    @property
    def new_tokens_per_group(self) -> int | None:
        """Maximum number of new tokens of an answer in a served slot; None without a lease."""
        return None if self.max_units is None else max(1, self.max_units // max(1, self.groups))

    @property
    def seed(self) -> bytes | None:
        """The slot's seed; None if `parts` are unknown."""
        if self.parts is None:
            return None
        return slot_seed(
            chain_id=self.parts.chain_id,
            pool_id=self.parts.pool_id,
            run_id=self.run,
            step=self.step,
            node=self.node,
            index=self.index,
            digest=self.digest,
            beacon=self.parts.beacon,
            salt=self.parts.salt,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedVersion:
    """An opened version folder, without its weights; made by `open_version`."""

    digest: Digest
    folder: Path
    recipe: Recipe
    environment: CheckedEnvironment
    planner: SlotPlanner
    model: ModelFacts
    tokenizer: FolderTokenizer


def open_version(folder: Path) -> CheckedVersion:
    """Opens and hashes a version folder without loading its weights.

    Raises:
        BadVersionFolder: The folder is unusable; the message says why.
        UnknownEnvironment: The environment of the version's recipe is not installed here.
    """
    model, recipe = read_model(folder), read_recipe(folder)
    check_classes(recipe, model, folder=folder)
    choice = recipe.environment
    environment = load_environment(choice.name, version=choice.version, options=choice.options)
    tokenizer = FolderTokenizer(folder)
    try:
        digest = version_digest(folder_files(folder))
    except (MusterError, OSError) as error:
        raise BadVersionFolder(f"{folder} is not a version: {error}") from error
    eligible = eligible_prompts(folder, recipe)
    return CheckedVersion(
        digest=digest,
        folder=folder,
        recipe=recipe,
        environment=environment,
        planner=SlotPlanner(recipe=recipe, eligible=eligible, environment=environment, tokenizer=tokenizer),
        model=model,
        tokenizer=tokenizer,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInput:
    """The input of all checks of one file.

    Args:
        file: The submitted file.
        facts: Facts of its slot.
        version: The version that the slot was leased for.
        evidence: Prefill results of the selected rows, by row number; empty before the prefill.
        limits: Calibrated limits for this model, engine and data type; None if not calibrated.
        spread: Differences between the verifier's own passes over a row, by row number; empty after a single pass.
        spread_factor: A row's limit is the larger of the calibrated limit and the row's own spread times this factor.
        served: The requests that the slot answered, by `read_served`; None unless the version is served.
    """

    file: RolloutFile
    facts: SlotFacts
    version: CheckedVersion
    evidence: Mapping[int, RowEvidence] = field(default_factory=dict)
    limits: CheckLimits | None = None
    spread: Mapping[int, RowSpread] = field(default_factory=dict)
    spread_factor: float = 0.0
    served: ServedRows | None = None

    @classmethod
    def of(
        cls, file: RolloutFile, facts: SlotFacts, version: CheckedVersion, *, limits: CheckLimits | None = None
    ) -> Self:
        """Returns the input for a file, with its list of served requests."""
        served = read_served(
            file, version, work_key=facts.work_key, domain=facts.domain, new_tokens=facts.new_tokens_per_group
        )
        return cls(file=file, facts=facts, version=version, limits=limits, served=served)

    @property
    def drawn_file(self) -> RolloutFile:
        """The file in which each sample has the number that keys its draws: in a served file, its choice's index."""
        return self.file if self.served is None else self.served.drawn_file

    def draws(self, row: int) -> Draws:
        """Returns seed and sampling parameters of a row."""
        if self.served is not None and row < len(self.served.rows):
            return self.served.rows[row].draws
        return Draws(seed=self.facts.seed, parameters=self.version.recipe.sampling.parameters)

    def with_draws(self, rows: Iterable[int]) -> dict[int, Draws]:
        """Returns rows with their seeds and sampling parameters, in the same order."""
        return {row: self.draws(row) for row in rows}

    def widest(self, limit: float, own: float) -> float:
        """Returns the larger of `limit` and `spread_factor` times the verifier's own spread `own`."""
        return max(limit, self.spread_factor * own)

    def finding(
        self, reason: ReasonCode, what: str, *, row: int, position: int | None = None, single: bool = False
    ) -> CheckFinding:
        """Returns a finding about one row."""
        sample = self.file.samples[row]
        return CheckFinding(
            reason=reason,
            what=what,
            row=row,
            sample=sample.sample,
            group=sample.group,
            position=position,
            single=single,
        )
