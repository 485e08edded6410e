"""Distributed training in a mesh of processes that torchrun starts.

Each process holds a shard of the policy.

Process 0 (rank 0) runs the training loop and sends commands to the other processes, the followers.
"""
