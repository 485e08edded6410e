"""The run: accepted rollouts become the next version of the policy, step after step, whatever fails in between."""
