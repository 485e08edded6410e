"""Deltas: exact differences between two versions of a file, which the publisher builds.

Consecutive checkpoints at a small learning rate share nearly all of their bf16 values (PULSE, arXiv 2602.03839). A
delta contains the positions of the changed values, and the changes. A reader applies the delta to the old file, the
base, and gets exactly the new file. So a version has the same digest, whether it is sent whole or as deltas.

    build_delta(base=old, target=new, delta=out)
    apply_delta(base=old, delta=out, target=again, size=new.stat().st_size)
"""

from shardcast.delta.applying import apply_delta
from shardcast.delta.building import BuiltDelta, build_delta
from shardcast.delta.errors import BadDelta, DeltaTooLarge

__all__ = ["BadDelta", "BuiltDelta", "DeltaTooLarge", "apply_delta", "build_delta"]
