"""Errors of the trainer.

MusterError
├── TrainingDiverged   loss or gradient is repeatedly NaN or infinite
├── InvalidInput       (protocol)
│   ├── BadSettings    a settings file or an option has an invalid value
│   └── BadExamples    no examples, or an unreadable row in a file
├── NothingToLearn     no group has signal for many steps
├── Conflict           (protocol) the target exists, or unfinished work has other settings
│   └── AnotherTrainer another trainer works on this run
└── Unavailable        (protocol)
    ├── NotWritten     the disk is full or refuses; earlier files are intact
    └── MeshBroken     a process of a distributed trainer is lost
"""

from __future__ import annotations

from protocol.errors import Conflict, InvalidInput, MusterError, Unavailable


class TrainingDiverged(MusterError):
    """The loss or the gradient stayed NaN or infinite after skipping steps."""

    code = "training-diverged"
    default_hint = "lower the learning rate, lengthen its warm-up, or clip gradients closer"


class NothingToLearn(MusterError):
    """No group of many steps has differing rewards."""

    code = "nothing-to-learn"
    default_hint = "look at rewards and prompts: all samples of a prompt are right, or none is"


class AnotherTrainer(Conflict):
    """Another trainer works on this run, so this trainer stops."""

    code = "another-trainer"
    default_hint = "one trainer works on a run; give this one the state directory of the other, or another run"


class BadSettings(InvalidInput):
    """A setting is unknown, missing or invalid."""

    code = "bad-settings"


class BadExamples(InvalidInput):
    """The examples can't be used."""

    code = "bad-examples"


class NotWritten(Unavailable):
    """A file could not be written; the previous one is intact."""

    code = "not-written"
    default_hint = "make room on that disk; the same command then goes on from the last checkpoint"


class MeshBroken(Unavailable):
    """A process of a distributed trainer is lost, or diverged from this one."""

    code = "mesh-broken"
    default_hint = "the log of the process that ended first says why; the same command then goes on by the journal"
