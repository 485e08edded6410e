"""What goes wrong while a model is trained.

MusterError
├── TrainingDiverged   loss or gradient is no number, again and again
├── InvalidInput       (protocol)
│   ├── BadSettings    a file of settings, or an option, says what can't be
│   └── BadExamples    there is nothing to learn from, or a row of a file can't be read
├── NothingToLearn     step after step, no group has signal
├── Conflict           (protocol) the target is taken, or half-finished work is of other settings
│   └── AnotherTrainer somebody else trains this run
└── Unavailable        (protocol)
    ├── NotWritten     the disk is full, or refuses; what was written before stands
    └── MeshBroken     one of several processes that learn together is gone
"""

from __future__ import annotations

from protocol.errors import Conflict, InvalidInput, MusterError, Unavailable


class TrainingDiverged(MusterError):
    """The loss or the gradient is no number, and skipping steps did not help."""

    code = "training-diverged"
    default_hint = "lower the learning rate, lengthen its warm-up, or clip gradients closer"


class NothingToLearn(MusterError):
    """Steps bring no group whose rewards differ."""

    code = "nothing-to-learn"
    default_hint = "look at rewards and prompts: all samples of a prompt are right, or none is"


class AnotherTrainer(Conflict):
    """Somebody else trains this run, so this trainer has to stop."""

    code = "another-trainer"
    default_hint = "one trainer works on a run; give this one the state directory of the other, or another run"


class BadSettings(InvalidInput):
    """A setting is unknown, missing, or has a value that it can't have."""

    code = "bad-settings"


class BadExamples(InvalidInput):
    """Nothing can be learned from this."""

    code = "bad-examples"


class NotWritten(Unavailable):
    """A file could not be written; the one before it stands."""

    code = "not-written"
    default_hint = "make room on that disk; the same command then goes on from the last checkpoint"


class MeshBroken(Unavailable):
    """A process that learns together with this one is gone, or did otherwise than this one."""

    code = "mesh-broken"
    default_hint = "the log of the process that ended first says why; the same command then goes on by the journal"
