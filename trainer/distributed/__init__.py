"""Distributed training in a mesh: a group of processes that torchrun starts, each with a shard of the policy.

Process 0 (rank 0) runs the training loop and sends commands to the other processes, the followers.
"""
