"""Distributed training: process 0 (rank 0) runs the loop; all processes hold shards of the policy."""
