"""Tools for the author of a policy version: its recipe and its table of prompts.

recipe_proposal    proposes and checks a recipe for a model folder and an environment
difficulty_filter  measures which prompts the model solves sometimes, and keeps those
"""
