"""TOPLOC: proofs that a policy's own computation produced a rollout's tokens (arXiv 2501.16007; docs/toploc.md)."""

from rollouts.toploc.builder import PendingProofs, ProofBuilder
from rollouts.toploc.calibration import BadCalibration, Calibration, CalibrationEntry
from rollouts.toploc.intervals import split, stretches_of
from rollouts.toploc.polynomial import PolynomialCodec, Unprovable, encode
from rollouts.toploc.proofs import TOPLOC, build, proofs_of, verify, verify_many, verify_rows
from rollouts.toploc.results import Malformed, ProofResult
from rollouts.toploc.thresholds import (
    Aggregate,
    Excess,
    Judgement,
    ProofErrors,
    ProofOutcome,
    Thresholds,
    aggregate,
    judge,
)

__all__ = [
    "TOPLOC",
    "Aggregate",
    "BadCalibration",
    "Calibration",
    "CalibrationEntry",
    "Excess",
    "Judgement",
    "Malformed",
    "PendingProofs",
    "PolynomialCodec",
    "ProofBuilder",
    "ProofErrors",
    "ProofOutcome",
    "ProofResult",
    "Thresholds",
    "Unprovable",
    "aggregate",
    "build",
    "encode",
    "judge",
    "proofs_of",
    "split",
    "stretches_of",
    "verify",
    "verify_many",
    "verify_rows",
]
