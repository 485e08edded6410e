"""Environments: families of tasks with prompts and verifiable rewards.

    environment = load_environment("letters", version="1", options={})
    prompt = environment.prompt(17)
    environment.score(prompt, "dcba", finished=True).task

Everything here is a pure function of its arguments, so that workers and validators get equal results; see
`docs/environments.md`.
"""

from rollouts.environments.heldout import is_held_out
from rollouts.environments.interface import Environment, Prompt, Rewards, Score
from rollouts.environments.registry import load_environment, locate_options
from rollouts.environments.rewards import LengthReward, Reward, is_solved, reward_of

__all__ = [
    "Environment",
    "LengthReward",
    "Prompt",
    "Reward",
    "Rewards",
    "Score",
    "is_held_out",
    "is_solved",
    "load_environment",
    "locate_options",
    "reward_of",
]
