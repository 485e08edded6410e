"""Rollouts: seeds, sampling, environments, proofs, files, engines and the generation task."""
