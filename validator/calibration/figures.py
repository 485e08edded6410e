"""Measurements of honest files, made by prefills; the limits of a calibration are derived from the measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollouts.calibration.limits import CheckLimits
from rollouts.calibration.noise_model import GroupFigures
from rollouts.checks import RowEvidence
from rollouts.checks.computation import forgiven
from rollouts.files.samples import RolloutFile
from rollouts.sampling.replay import Replay, summarise
from rollouts.toploc import Aggregate, ProofOutcome, aggregate, judge


@dataclass(slots=True)
class CalibrationFigures:
    """Measurements for one pair of arithmetics: one generated all files, the other (or the same) verified them.

    Args:
        replays: Results of the replay (which token does the seeded noise select?), one for each file.
        files: Results of the TOPLOC proofs, aggregated for each file.
        samples: Results of the TOPLOC proofs, aggregated for each row.
        errors: Absolute differences between recorded and recomputed log-probabilities, one array for each file.
        groups: Measurements of each group, from which `HonestNoise` derives limits that depend on a file's size.
    """

    replays: list[Replay] = field(default_factory=list)
    files: list[Aggregate] = field(default_factory=list)
    samples: list[Aggregate] = field(default_factory=list)
    errors: list[NDArray[np.float64]] = field(default_factory=list)
    groups: list[GroupFigures] = field(default_factory=list)

    def add(self, file: RolloutFile, evidence: Mapping[int, RowEvidence]) -> None:
        """Adds the measurements of one file.

        Args:
            file: The file.
            evidence: Results of the prefill, by row.
        """
        self.replays.append(summarise(one.gaps for one in evidence.values() if one.gaps is not None))
        proofs = [tuple(map(forgiven, one.proofs)) for one in evidence.values()]
        self.files.append(aggregate(result for results in proofs for result in results))
        self.samples += [aggregate(results) for results in proofs]
        self.groups += groups_of(file, evidence)
        self.errors.append(
            np.concatenate(
                [np.abs(file.samples[row].logprobs.astype(np.float64) - one.logprobs) for row, one in evidence.items()]
            )
        )

    def extend(self, others: CalibrationFigures) -> None:
        """Adds the measurements in `others`, of other files of the same pair of arithmetics."""
        self.replays += others.replays
        self.files += others.files
        self.samples += others.samples
        self.errors += others.errors
        self.groups += others.groups

    @property
    def tokens(self) -> int:
        """Number of replayed tokens of all files."""
        return sum(one.tokens for one in self.replays)

    @property
    def mismatches(self) -> int:
        """Number of tokens in the files that differ from the token that the replay draws."""
        return sum(one.mismatches for one in self.replays)

    @property
    def largest_gap(self) -> float:
        """Largest gap of one token: score of the token that the replay draws, minus score of the token in the file."""
        return max(one.largest for one in self.replays)

    @property
    def largest_sum(self) -> float:
        """Largest sum of the gaps of one row's tokens; see `largest_gap`."""
        return max(one.largest_sum for one in self.replays)

    @property
    def largest_error(self) -> float:
        """Largest absolute difference between a token's log-probability in the file and the recomputed one."""
        return max(float(one.max()) for one in self.errors)

    @property
    def worst_distance(self) -> float:
        """Largest mantissa difference in any proof, in units of the last place."""
        return max(one.figures.distance_worst for one in self.files)

    def rejected(self, limits: CheckLimits) -> tuple[int, int]:
        """Returns the number of files beyond the replay limits, and the number beyond the proof limits."""
        sampling = limits.sampling
        by_replay = sum(
            one.mismatches > sampling.mismatches(one.tokens)
            or one.largest > sampling.largest
            or one.largest_sum > sampling.largest_sum
            for one in self.replays
        )
        by_proofs = sum(judge(one, limits.file).outcome is not ProofOutcome.PASSED for one in self.files)
        return by_replay, by_proofs


def groups_of(file: RolloutFile, evidence: Mapping[int, RowEvidence]) -> Iterator[GroupFigures]:
    """Yields the measurements of each group, computed over the rows of the group that are in `evidence`."""
    of_groups: defaultdict[int, list[RowEvidence]] = defaultdict(list)
    for row, one in evidence.items():
        of_groups[file.samples[row].group].append(one)
    for rows in of_groups.values():
        replay = summarise(one.gaps for one in rows if one.gaps is not None)
        proofs = aggregate(forgiven(result) for one in rows for result in one.proofs)
        yield GroupFigures(
            rows=len(rows),
            distance=proofs.figures.distance_mean,
            tokens=replay.tokens,
            mismatches=replay.mismatches,
            deviations=replay.sum,
        )
