"""Adapts environment classes of OpenEnv, which have `reset(seed)` and `step(action)`, as environments.

family     the environment family `openenv`, and its episodes
code       the command that prints the digest of a package
job        makes an environment and repeats its steps, inside a sandbox
"""
