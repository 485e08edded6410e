"""Errors of the trainer.

MusterError
├── TrainingDiverged   loss or gradient was unusable in too many consecutive steps
├── InvalidInput       (protocol)
│   ├── BadSettings    a setting or option is invalid
│   └── BadExamples    there are no examples, or a row can't be read
├── NothingToLearn     too many consecutive steps had no group whose rewards differ
├── Conflict           (protocol) the target exists, or unfinished work has other settings
│   └── AnotherTrainer another trainer works on this run
└── Unavailable        (protocol)
    ├── NotWritten     the disk is full or refuses writes; earlier files are unchanged
    └── MeshBroken     a process of the training mesh has ended
"""

from __future__ import annotations

from protocol.errors import Conflict, InvalidInput, MusterError, Unavailable


class TrainingDiverged(MusterError):
    """Loss or gradient was NaN, infinite or too large in too many consecutive steps."""

    code = "training-diverged"
    default_hint = "lower the learning rate, lengthen its warm-up, or clip gradients at a smaller norm"


class NothingToLearn(MusterError):
    """Too many consecutive steps have no group whose rewards differ."""

    code = "nothing-to-learn"
    default_hint = "check rewards and prompts: the samples of each prompt are all correct or all wrong"


class AnotherTrainer(Conflict):
    """Another trainer works on this run, so this one must stop."""

    code = "another-trainer"
    default_hint = (
        "only one trainer may work on a run: start this trainer with the other trainer's state directory, or for "
        "another run"
    )


class BadSettings(InvalidInput):
    """A setting is unknown, missing or invalid."""

    code = "bad-settings"


class BadExamples(InvalidInput):
    """The examples are missing or can't be read."""

    code = "bad-examples"


class NotWritten(Unavailable):
    """A file could not be written; its previous version is unchanged."""

    code = "not-written"
    default_hint = "make room on that disk; the same command then resumes from the last checkpoint"


class MeshBroken(Unavailable):
    """Another process has ended, can't be reached, or failed where others succeeded."""

    code = "mesh-broken"
    default_hint = (
        "the log of the process that ended first gives the reason; the same command then resumes from the journal"
    )
