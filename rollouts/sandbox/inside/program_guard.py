"""Changes a program so that its output is the same on every machine: see `repeatable`.

- Every identifier of the program is checked (`_Guard.visit`), and names given as texts (`getattr`, `str.format`).
- The guarded operations call functions by names that no source can spell, and that class bodies read as globals.
- A program ends when its memory limit was reached, before any of its handlers, `finally` blocks or `__exit__` runs.
"""

from __future__ import annotations

import ast

_DUNDERS = frozenset({"__class__", "__doc__", "__init__", "__name__"})
_ARITHMETIC = "add and divmod floordiv lshift matmul mod mul or pow rshift sub truediv xor"
_METHODS = frozenset(
    f"__{name}__"
    for name in (
        "abs bool bytes call ceil class_getitem complex contains copy deepcopy delattr delete delitem enter eq exit "
        "float floor format ge get getattr getitem gt hash index init init_subclass int invert iter le len lt missing "
        "ne neg new next pos post_init repr reversed round set set_name setattr setitem str trunc "
        + " ".join(f"{name} r{name} i{name}" for name in _ARITHMETIC.split())
    ).split()
)
"""Methods that a class may define. Not `__del__`: the collector's time and its errors are not part of the program."""
_INTERNALS = frozenset(
    {f"{kind}_{part}" for kind in ("ag", "cr", "gi") for part in ("code", "frame")}
    | {"f_back", "f_builtins", "f_code", "f_globals", "f_locals", "tb_frame", "tb_next"}
    | {"_convert_", "_evaluate"}
)
"""Attributes that lead from a generator, an exception, an enumeration or a type hint out of the program."""
FORMATS = frozenset({"format", "format_map"})
POWER, CHECK_MEMORY, SHOW, ATTRIBUTE = "power ", "check memory", "show ", "attribute "
"""Names of the guards. No source can spell them, so a program can't bind them."""


class _Refused(Exception):
    """The program uses a name that it can't use."""

    __module__ = "inside.repeatable"  # a program can print the class, so its full name is part of the output


Refused = _Refused


def guard(tree: ast.Module) -> None:
    """Checks the names of a program, and replaces its operations by guarded ones, in place.

    Raises:
        Refused: The program uses a name that it can't use.
    """
    _Guard().visit(tree)


class _Guard(ast.NodeTransformer):
    """Refuses names that lead out of the program, and replaces operations by guarded ones."""

    def __init__(self) -> None:
        self._methods: set[ast.AST] = set()

    def visit(self, node: ast.AST) -> object:
        """Checks all identifiers of a node of any kind, and guards the node."""
        if not isinstance(node, ast.Constant):
            for _, value in ast.iter_fields(node):
                for name in value if isinstance(value, list) else [value]:
                    if isinstance(name, str) and not (node in self._methods and name in _METHODS):
                        _check_identifier(name)
        return super().visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._methods.update(part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
        self.generic_visit(node)
        # A class body reads other names from a mapping that the program may provide.
        start = 0 if ast.get_docstring(node, clean=False) is None else 1
        node.body.insert(start, ast.copy_location(ast.Global([POWER, CHECK_MEMORY, ATTRIBUTE]), node.body[0]))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr not in FORMATS or not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(guarded(ATTRIBUTE, node.value, ast.Constant(node.attr)), node)

    def visit_MatchClass(self, node: ast.MatchClass) -> ast.AST:
        # Positions and the guarded attributes would be read by names that are known only at run time.
        if node.patterns or FORMATS.intersection(node.kwd_attrs):
            raise Refused("a pattern of a class needs names of attributes, as in case Point(x=0, y=1)")
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow):
            return node
        return ast.copy_location(guarded(POWER, node.left, node.right), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow):
            return node
        if not isinstance(node.target, ast.Name):
            raise Refused("**= is possible for a plain name only; write x = x ** y")
        power = guarded(POWER, ast.Name(node.target.id, ast.Load()), node.value)
        return ast.copy_location(ast.Assign([node.target], power), node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.copy_location(ast.Expr(guarded(CHECK_MEMORY)), node))
        return node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        self.generic_visit(node)
        return _with_checked_end(node)

    def visit_TryStar(self, node: ast.TryStar) -> ast.AST:
        self.generic_visit(node)
        return _with_checked_end(node)

    def visit_With(self, node: ast.With) -> ast.AST:
        return self._visit_with(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        return self._visit_with(node)

    def _visit_with(self, node: ast.With | ast.AsyncWith) -> ast.AST:
        self.generic_visit(node)
        node.body = [_checked(node.body)]
        # The other managers of the statement also see errors of the managers after them.
        for item in reversed(node.items[1:]):
            inner = ast.copy_location(type(node)([item], node.body), node)
            node.body = [_checked([inner])]
        del node.items[1:]
        return node


def _with_checked_end(node: ast.Try | ast.TryStar) -> ast.AST:
    """Checks the memory before a `finally` block, which may drop the error."""
    if not node.finalbody:
        return node
    final, node.finalbody = node.finalbody, []
    body: list[ast.stmt] = [node] if node.handlers else node.body
    checked = _checked(body)
    checked.finalbody = final
    return checked


def _checked(body: list[ast.stmt]) -> ast.Try:
    """Returns statements after whose errors the memory is checked."""
    handler = ast.ExceptHandler(None, None, [ast.Expr(guarded(CHECK_MEMORY)), ast.Raise()])
    return ast.copy_location(ast.Try(body, [handler], [], []), body[0])


def guarded(name: str, *arguments: ast.expr) -> ast.Call:
    """Returns a call of a guard."""
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _check_identifier(name: str) -> None:
    for part in name.split("."):
        check_name(part)


def check_name(name: object) -> None:
    """Checks the name of an attribute, which the program may compute.

    Raises:
        Refused: A program can't use the name.
        TypeError: It is no text.
    """
    if type(name) is not str:
        raise TypeError("the name of an attribute is a plain text")
    if name in _INTERNALS or (
        name.startswith("__") and name.endswith("__") and name.strip("_") and name not in _DUNDERS
    ):
        raise Refused(f"the name {name} can't be used here")
