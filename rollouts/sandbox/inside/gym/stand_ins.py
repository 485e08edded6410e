"""Stand-ins for four packages that reasoning-gym imports, but that are hard to install or only make pictures.

`cellpylib` depends on matplotlib, `pycosat` and `zss` exist only as source distributions, and `drawsvg` makes pictures.
Each stand-in has just the functions that the datasets call. The stand-ins are always used, even where the real package
is installed, so that every machine makes and scores the same items.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Grid = npt.NDArray[np.int32]
Literals = Sequence[int]
"""A clause: a positive number is a variable, and a negative number is the negation of a variable."""


def install() -> None:
    """Registers the stand-ins as modules; must be called before reasoning_gym is imported."""
    parts: dict[str, dict[str, object]] = {
        "cellpylib": {"init_simple2d": init_simple2d, "evolve2d": evolve2d, "game_of_life_rule": game_of_life_rule},
        "drawsvg": {"Drawing": object},
        "pycosat": {"itersolve": itersolve},
        "zss": {"Node": Node, "simple_distance": simple_distance},
    }
    for name, content in parts.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        sys.modules[name] = module


# cellpylib: Conway's Game of Life on a torus.


def init_simple2d(rows: int, columns: int) -> Grid:
    """Returns a grid with one time step, in which only the middle cell is 1."""
    grid = np.zeros((1, rows, columns), dtype=np.int32)
    grid[0, rows // 2, columns // 2] = 1
    return grid


def game_of_life_rule(neighbourhood: Grid, cell: object, step: object) -> int:  # noqa: ARG001 - cellpylib's signature
    """Returns the next state of the middle of 3 x 3 cells."""
    around = int(neighbourhood.sum() - neighbourhood[1][1])
    return int(around == 3 or (around == 2 and neighbourhood[1][1] == 1))


def evolve2d(grid: Grid, *, timesteps: int, apply_rule: object, memoize: object = None) -> Grid:  # noqa: ARG001 - likewise
    """Returns `timesteps` steps of the Game of Life, of which the first is `grid`."""
    if apply_rule is not game_of_life_rule:
        raise NotImplementedError("only the Game of Life")
    steps = [grid[-1]]
    for _ in range(timesteps - 1):
        now = steps[-1]
        around = sum(
            np.roll(now, (down, right), axis=(0, 1))
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            if (down, right) != (0, 0)
        )
        steps.append(((around == 3) | ((around == 2) & (now == 1))).astype(np.int32))
    return np.stack(steps)


# zss: edit distance of ordered trees (Zhang and Shasha, SIAM J. Comput. 18(6), 1989).


class Node:
    """Node of an ordered tree."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.children: list[Node] = []

    def addkid(self, child: Node) -> Node:
        """Appends a child."""
        self.children.append(child)
        return self


def simple_distance(first: Node, second: Node, *, label_dist: Callable[[str, str], float]) -> float:
    """Returns the least cost of turning one tree into the other.

    Args:
        first: A tree.
        second: Another tree.
        label_dist: Cost of changing a label; the empty text stands for a node that is inserted or deleted.
    """
    return _Distance(_Postorder(first), _Postorder(second), label_dist).compute()


class _Postorder:
    """Labels, leftmost leaves and key roots of a tree, in postorder."""

    def __init__(self, root: Node) -> None:
        self.labels: list[str] = []
        self.leftmost: list[int] = []
        self._walk(root)
        last = {leaf: position for position, leaf in enumerate(self.leftmost)}
        self.keyroots = sorted(last.values())

    def _walk(self, node: Node) -> int:
        leaves = [self._walk(child) for child in node.children]
        leaf = leaves[0] if leaves else len(self.labels)
        self.labels.append(node.label)
        self.leftmost.append(leaf)
        return leaf


class _Distance:
    """Distances of all pairs of subtrees of two trees."""

    def __init__(self, ours: _Postorder, theirs: _Postorder, label_dist: Callable[[str, str], float]) -> None:
        self._ours = ours
        self._theirs = theirs
        self._change = label_dist
        self._delete = [label_dist(label, "") for label in ours.labels]
        self._insert = [label_dist("", label) for label in theirs.labels]
        self._of_trees = [[0.0] * len(theirs.labels) for _ in ours.labels]

    def compute(self) -> float:
        """Returns the distance of the two trees."""
        for i in self._ours.keyroots:
            for j in self._theirs.keyroots:
                self._compare(i, j)
        return self._of_trees[-1][-1]

    def _compare(self, i: int, j: int) -> None:
        """Computes the distances of all subtrees on the leftmost paths of two key roots."""
        ours, theirs = self._ours, self._theirs
        left, above = ours.leftmost[i], theirs.leftmost[j]
        forest = [[0.0] * (j - above + 2) for _ in range(i - left + 2)]
        for row in range(1, len(forest)):
            forest[row][0] = forest[row - 1][0] + self._delete[left + row - 1]
        for column in range(1, len(forest[0])):
            forest[0][column] = forest[0][column - 1] + self._insert[above + column - 1]
        for row in range(1, len(forest)):
            one = left + row - 1
            for column in range(1, len(forest[0])):
                other = above + column - 1
                cheapest = min(
                    forest[row - 1][column] + self._delete[one], forest[row][column - 1] + self._insert[other]
                )
                if ours.leftmost[one] == left and theirs.leftmost[other] == above:
                    changed = forest[row - 1][column - 1] + self._change(ours.labels[one], theirs.labels[other])
                    forest[row][column] = self._of_trees[one][other] = min(cheapest, changed)
                else:
                    before = forest[ours.leftmost[one] - left][theirs.leftmost[other] - above]
                    forest[row][column] = min(cheapest, before + self._of_trees[one][other])


# pycosat: satisfying assignments of a formula.


def itersolve(clauses: Iterable[Literals]) -> Iterator[list[int]]:
    """Yields every satisfying assignment as a list of literals, by unit propagation and backtracking."""
    formula = [tuple(dict.fromkeys(clause)) for clause in clauses]
    variables = max((abs(literal) for clause in formula for literal in clause), default=0)
    search = _Search(formula, variables)
    yield from search.solutions()


class _Search:
    """Depth-first search over assignments; each clause counts its literals that are not yet false."""

    def __init__(self, formula: list[tuple[int, ...]], variables: int) -> None:
        self._formula = formula
        self._variables = variables
        self._value = [0] * (variables + 1)
        self._open = [len(clause) for clause in formula]
        self._with: dict[int, list[int]] = {each: [] for each in range(-variables, variables + 1)}
        self._trail: list[int] = []
        for number, clause in enumerate(formula):
            for literal in clause:
                self._with[literal].append(number)

    def solutions(self) -> Iterator[list[int]]:
        """Yields the assignments."""
        units = [clause[0] for clause in self._formula if len(clause) == 1]
        if all(self._open) and self._assume(units):
            yield from self._branch()

    def _branch(self) -> Iterator[list[int]]:
        free = self._most_constrained()
        if free == 0:
            yield [number if self._value[number] > 0 else -number for number in range(1, self._variables + 1)]
            return
        for literal in (free, -free):
            mark = len(self._trail)
            if self._assume([literal]):
                yield from self._branch()
            self._undo(mark)

    def _most_constrained(self) -> int:
        """Returns an unassigned literal of an unsatisfied clause with the fewest open literals; 0 if none is left."""
        best, fewest = 0, 1 << 30
        value = self._value
        for number, clause in enumerate(self._formula):
            if self._open[number] < fewest and not any(_holds(value, literal) for literal in clause):
                best = next(literal for literal in clause if value[abs(literal)] == 0)
                fewest = self._open[number]
                if fewest == 2:
                    break
        return best or next((number for number in range(1, self._variables + 1) if value[number] == 0), 0)

    def _assume(self, literals: Iterable[int]) -> bool:
        """Sets literals and all literals that follow from them; returns False at a contradiction."""
        queue = list(literals)
        for literal in queue:
            variable = abs(literal)
            sign = 1 if literal > 0 else -1
            if self._value[variable]:
                if self._value[variable] != sign:
                    return False
                continue
            self._value[variable] = sign
            self._trail.append(literal)
            consistent = True
            for number in self._with[-literal]:
                self._open[number] -= 1
                if self._open[number] <= 1:
                    consistent = self._follow(number, queue) and consistent
            if not consistent:
                return False
        return True

    def _follow(self, number: int, queue: list[int]) -> bool:
        """Queues the last literal of an unsatisfied clause; returns False if no literal is left."""
        value = self._value
        last = 0
        for literal in self._formula[number]:
            state = value[abs(literal)]
            if state == 0:
                last = literal
            elif (state > 0) == (literal > 0):
                return True
        if last:
            queue.append(last)
        return last != 0

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            literal = self._trail.pop()
            self._value[abs(literal)] = 0
            for number in self._with[-literal]:
                self._open[number] += 1


def _holds(value: list[int], literal: int) -> bool:
    return value[abs(literal)] == (1 if literal > 0 else -1)
