"""Deltas: bit-exact differences between two versions of a file, built by the publisher, applied by readers.

Consecutive checkpoints at a small learning rate share nearly all of their bf16 values (PULSE, arXiv 2602.03839). A
delta holds the positions and sizes of differences. Applied to its base it produces the exact file, so a version has the
same digest either way.

    build_delta(base=old, target=new, delta=out)
    apply_delta(base=old, delta=out, target=again, size=new.stat().st_size)
"""

from shardcast.delta.applying import apply_delta
from shardcast.delta.building import BuiltDelta, build_delta
from shardcast.delta.errors import BadDelta, DeltaTooLarge

__all__ = ["BadDelta", "BuiltDelta", "DeltaTooLarge", "apply_delta", "build_delta"]
