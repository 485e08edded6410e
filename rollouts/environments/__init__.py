"""Environments: families of tasks with prompts and verifiable rewards.

    environment = load_environment("letters", version="1", options={})
    prompt = environment.prompt(17)
    environment.score(prompt, "dcba", finished=True).task

Everything here is a pure function of its arguments, so that workers and validators get equal results; see
`docs/environments.md`.
"""

from rollouts.environments.heldout import is_held_out
from rollouts.environments.interface import Environment, Prompt, Score
from rollouts.environments.registry import families, load_environment
from rollouts.environments.rewards import LengthReward, Reward, reward_of

__all__ = [
    "Environment",
    "LengthReward",
    "Prompt",
    "Reward",
    "Score",
    "families",
    "is_held_out",
    "load_environment",
    "reward_of",
]
