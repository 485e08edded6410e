"""Stand-ins for packages that reasoning-gym imports: results worked out by hand and by trying everything."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from rollouts.sandbox.inside.gym.stand_ins import (
    Node,
    evolve2d,
    game_of_life_rule,
    init_simple2d,
    itersolve,
    simple_distance,
)


def satisfying(formula: list[list[int]], variables: int) -> set[tuple[int, ...]]:
    """Returns all satisfying assignments by trying every one."""
    every = itertools.product(*((number, -number) for number in range(1, variables + 1)))
    return {each for each in every if all(set(clause) & set(each) for clause in formula)}


@pytest.mark.parametrize("seed", range(60))
def test_all_assignments_of_a_formula_are_found_once(seed: int) -> None:
    draw = random.Random(seed)
    variables = draw.randint(1, 7)
    formula = [
        [draw.choice((1, -1)) * draw.randint(1, variables) for _ in range(draw.randint(1, 3))]
        for _ in range(draw.randint(1, 20))
    ]
    highest = max(abs(literal) for clause in formula for literal in clause)
    found = [tuple(each) for each in itersolve(formula)]
    assert len(found) == len(set(found))
    assert set(found) == satisfying(formula, highest)


def test_an_empty_clause_has_no_assignment() -> None:
    assert list(itersolve([[1], []])) == []
    assert list(itersolve([])) == [[]]


def tree(text: str) -> Node:
    """Returns a tree from a text such as `f(d(ac(b))e)`: a letter, then its children."""
    root, stack = Node(""), []
    last = root
    for sign in text:
        if sign == "(":
            stack.append(last)
        elif sign == ")":
            stack.pop()
        else:
            last = Node(sign)
            (stack[-1] if stack else root).addkid(last)
    return root.children[0]


def unit(first: str, second: str) -> float:
    return float(first != second)


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ("f(d(ac(b))e)", "f(c(d(ab))e)", 2),  # the example of Zhang and Shasha
        ("a", "a", 0),
        ("a", "b", 1),
        ("a(b)", "a", 1),
        ("a(bc)", "a(cb)", 2),
        ("a(b(c))", "a(c)", 1),
        ("a(bcd)", "x(yz)", 4),
    ],
)
def test_tree_distances(first: str, second: str, distance: float) -> None:
    assert simple_distance(tree(first), tree(second), label_dist=unit) == distance
    assert simple_distance(tree(second), tree(first), label_dist=unit) == distance


def test_a_blinker_turns_and_wraps_around_the_edge() -> None:
    grid = init_simple2d(5, 5)
    assert grid.shape == (1, 5, 5)
    assert grid.sum() == 1
    grid[:] = 0
    grid[0, 0, [4, 0, 1]] = 1  # across the right edge
    steps = evolve2d(grid, timesteps=3, apply_rule=game_of_life_rule, memoize="recursive")
    assert np.argwhere(steps[1]).tolist() == [[0, 0], [1, 0], [4, 0]]
    assert (steps[2] == grid[0]).all()


def test_other_rules_are_refused() -> None:
    with pytest.raises(NotImplementedError):
        evolve2d(init_simple2d(3, 3), timesteps=2, apply_rule=max)
