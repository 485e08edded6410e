"""Attacks that submit proofs which do not belong to the work."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.toolkit import AttackToolkit
from protocol.identifiers import address
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile, Sample
from rollouts.toploc import TOPLOC

_MODULUS = 2
"""Bytes of the modulus, with which a proof begins; the polynomial's coefficients follow."""


class Borrowed(Trick):
    """Uses the proofs of a file that the same version made for another slot.

    Args:
        lender: Returns the slot whose proofs are used.
    """

    def __init__(self, lender: Callable[[SlotGrant], SlotGrant]) -> None:
        self._lender = lender

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns honest rows with the other file's proofs, cut or repeated to the needed length."""
        file, lender = toolkit.file(grant), toolkit.file(self._lender(grant))
        return RolloutFile(file.header, tuple(map(_with_proofs_of, file.samples, lender.samples)))


class Shifted(Trick):
    """Moves every row's proofs to the previous row."""

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns honest rows, each with its neighbour's proofs."""
        file = toolkit.file(grant)
        return RolloutFile(file.header, tuple(map(_with_proofs_of, file.samples, _one_on(file.samples))))


class Forged(Trick):
    """Replaces every proof.

    Args:
        forge: Returns the forged proof for an honest one.
    """

    def __init__(self, forge: Callable[[AttackToolkit, bytes], bytes]) -> None:
        self._forge = forge

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns honest rows with forged proofs."""
        file = toolkit.file(grant)
        return RolloutFile(file.header, tuple(self._forged(toolkit, sample) for sample in file.samples))

    def _forged(self, toolkit: AttackToolkit, sample: Sample) -> Sample:
        size = TOPLOC.proof_bytes
        proofs = [sample.proofs[start : start + size] for start in range(0, len(sample.proofs), size)]
        return replace(sample, proofs=b"".join(self._forge(toolkit, proof) for proof in proofs))


def other_slot(grant: SlotGrant) -> SlotGrant:
    """Returns the slot after this one, which the node has not leased."""
    return grant.model_copy(update={"lease": grant.lease.model_copy(update={"index": grant.lease.index + 1})})


def other_node(grant: SlotGrant) -> SlotGrant:
    """Returns the same slot, but leased to another node with an invented address."""
    node = address("0x" + hashlib.sha256(grant.lease.node.encode()).hexdigest()[:40])
    return grant.model_copy(update={"lease": grant.lease.model_copy(update={"node": node})})


def constant(_: AttackToolkit, proof: bytes) -> bytes:
    """Returns the proof of a constant polynomial; computing it needs no hidden states.

    Its value is 1.0 in bfloat16, a likely activation.
    """
    return proof[:_MODULUS] + b"\x3f\x80" + bytes(len(proof) - _MODULUS - 2)


def chosen_modulus(toolkit: AttackToolkit, proof: bytes) -> bytes:
    """Sets the modulus to the width of the hidden states; all indices of a channel are then equal."""
    return toolkit.model.hidden.to_bytes(_MODULUS, "big") + proof[_MODULUS:]


def left_out(_: AttackToolkit, proof: bytes) -> bytes:
    """Returns no bytes, so that the proof is missing."""
    return proof[:0]


def twice(_: AttackToolkit, proof: bytes) -> bytes:
    """Returns the proof twice."""
    return proof + proof


def _with_proofs_of(sample: Sample, other: Sample) -> Sample:
    """Returns the sample with the proofs of `other`, repeated or cut to the required length."""
    needed = len(sample.proofs)
    return replace(sample, proofs=(other.proofs * (needed // max(1, len(other.proofs)) + 1))[:needed])


def _one_on(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    return (*samples[1:], samples[0])
