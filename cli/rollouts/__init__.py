"""`muster rollouts`: inspection and verification of rollout files."""
