"""Tools for the author of a policy version: its recipe, and the table of prompts that the recipe names.

recipe_proposal    proposes and checks a recipe for a model folder and an environment
difficulty_filter  measures which prompts the model solves sometimes, and keeps those
"""
