"""Mutants of Python code: each comparison, decision and step of a function is a site."""

import ast
from collections.abc import Iterator
from itertools import accumulate

from bench.mutants.mutant import Mutant, shown

_NEGATED = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_OPPOSITE = {"min": "max", "max": "min", "sorted": "list", "any": "all", "all": "any"}
# Calls on these change only what people read.
_ONLY_SHOWN = frozenset({"_log", "_metrics", "metrics", "telemetry"})
# Doing these calls twice writes twice. Waiting twice would change nothing.
_WRITES = frozenset({"append", "apply", "commit", "execute", "publish", "put", "release", "settle", "write"})
_Damage = tuple[str, ast.expr | ast.stmt, str]


class _Source:
    """A source text that returns the span of a node in characters. The parser gives lines and bytes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0, *accumulate(len(line) for line in self._lines)]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        last, offset = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._place(node.lineno, node.col_offset), self._place(last, offset)

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self._text[start:end]

    def shown(self, node: ast.expr | ast.stmt) -> str:
        return repr(shown(self.text(node)))

    def _place(self, line: int, offset: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:offset].decode())


def function_mutants(file: str, text: str) -> Iterator[Mutant]:
    """Return every mutant of the functions of a file."""
    source = _Source(text)
    for place, function in _functions(ast.parse(text)):
        for node in _own_nodes(function):
            for damage, where, instead in (*_wrong_decisions(source, node), *_wrong_steps(source, node)):
                start, end = source.span(where)
                yield Mutant(file, place, damage, where.lineno, start, end, instead)


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{part.name}", part


def _own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Return the nodes of a function body, without calls that only inform people."""
    pending: list[ast.AST] = list(reversed(function.body))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Expr) and _only_shown(node.value):
            continue
        yield node
        if not isinstance(node, ast.Raise):
            pending.extend(reversed(list(ast.iter_child_nodes(node))))


def _only_shown(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return True
    call = value.value if isinstance(value, ast.Await) else value
    names = {node.id if isinstance(node, ast.Name) else node.attr for node in _callee(call)}
    return bool(names & _ONLY_SHOWN)


def _callee(call: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    """Return the names of a called expression, from the last to the first."""
    node: ast.AST = call
    while True:
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute):
            yield node
            node = node.value
        else:
            if isinstance(node, ast.Name):
                yield node
            return


def _last_name(value: ast.expr) -> str:
    name = next(_callee(value.value if isinstance(value, ast.Await) else value), None)
    return name.attr if isinstance(name, ast.Attribute) else ""


def _wrong_decisions(source: _Source, node: ast.AST) -> Iterator[_Damage]:
    match node:
        case ast.Compare(ops=[operator], left=left, comparators=[right]):
            negated = f"(({source.text(left)}) {_NEGATED[type(operator)]} ({source.text(right)}))"
            yield f"turns {source.shown(node)} around", node, negated
        case ast.BoolOp(op=operator, values=values):
            word, other = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
            joined = f" {other} ".join(f"({source.text(value)})" for value in values)
            yield f"takes {word} for {other} in {source.shown(node)}", node, f"({joined})"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if _plain(test):
            yield f"turns {source.shown(test)} around", test, f"(not ({source.text(test)}))"
        case ast.Constant(value=bool(value)):
            yield f"takes {value} for {not value}", node, str(not value)


def _wrong_steps(source: _Source, node: ast.AST) -> Iterator[_Damage]:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())) | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield f"skips {source.shown(node)}", node, "pass"
            if isinstance(node, ast.Expr) and _last_name(node.value).lstrip("_") in _WRITES:
                yield f"does {source.shown(node)} twice", node, f"{source.text(node)}; {source.text(node)}"
        case ast.Call(func=ast.Name(id=name) as function) if name in _OPPOSITE:
            yield f"takes {name} for {_OPPOSITE[name]} in {source.shown(node)}", function, _OPPOSITE[name]
        case ast.BinOp(op=ast.Add(), left=left, right=ast.Constant(value=1)):
            yield f"forgets to add 1 in {source.shown(node)}", node, source.text(left)


def _plain(test: ast.expr) -> bool:
    """Return whether the outermost expression of a condition is not itself a site."""
    return not isinstance(test, ast.Compare | ast.BoolOp | ast.Constant)
