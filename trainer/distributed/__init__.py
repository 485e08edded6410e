"""Distributed training: rank 0 runs the loop, the other ranks hold shards of the policy and follow it."""
