"""Verification outside a validator: runs the checks on rollout files and on answers of the service.

files    a rollout file against its version: `muster rollouts verify FILE`
answers  an answer of `muster serve` against its version: `muster rollouts verify ANSWER.json`
gateway  answers that a gateway offers, one after another: `muster gateway verifier`
"""

from rollouts.verify.files import Verification, verify_file

__all__ = ["Verification", "verify_file"]
