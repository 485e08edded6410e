"""What a rollout is: seeds, sampling, environments, proofs, files, engines, and the task that generates."""
