"""The training run: trains new versions of the policy from accepted rollouts, and resumes after failures."""
