"""Changes of one token or statement of a module, found in its syntax tree.

Annotations, decorators, messages and `__repr__` are left out: they are for readers and type
checkers, and no test should repeat them.
"""

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "+"),
}
LOGIC = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
FOR_READERS = {"annotation", "returns", "decorator_list", "type_params"}  # fields of nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change to a file: `new` in place of the bytes from `start` to `end`."""

    path: str  # relative to a folder that may be copied
    source: bytes
    kind: str
    start: int
    end: int
    new: str

    @property
    def changed(self) -> bytes:
        """The whole file after the change."""
        return self.source[: self.start] + self.new.encode() + self.source[self.end :]

    @property
    def line(self) -> int:
        return self.source.count(b"\n", 0, self.start) + 1

    @property
    def shown(self) -> tuple[str, str]:
        """The lines that differ, before and after."""
        first = self.source.rfind(b"\n", 0, self.start) + 1
        last = self.source.find(b"\n", self.end)
        grown = len(self.changed) - len(self.source)
        texts = self.source[first:last], self.changed[first : last + grown]
        before, after = (" ".join(text.decode().split()) for text in texts)
        return before, after

    def is_real(self) -> bool:
        """Return True if the changed file is valid Python and another program."""
        try:
            return ast.dump(ast.parse(self.changed)) != ast.dump(ast.parse(self.source))
        except SyntaxError:
            return False


def changes(file: Path, top: Path) -> Iterator[Change]:
    """Find every change to a file below a folder; some may not be real."""
    path, source = str(file.relative_to(top)), file.read_bytes()
    lines = [0, *(match.end() for match in re.finditer(b"\n", source))]

    def place(node: Any) -> tuple[int, int]:
        start = lines[node.lineno - 1] + node.col_offset
        return start, lines[node.end_lineno - 1] + node.end_col_offset

    for node in _code(ast.parse(source)):
        for kind, parts, old, new in _ideas(node):
            start, end = place(parts[0])
            if len(parts) > 1:  # the operator between them
                start, end = end, place(parts[1])[0]
            before = source[start:end].decode()
            if len(parts) == 1 or "#" not in before:
                after = re.sub(old, new, before, count=1, flags=re.DOTALL)
                yield Change(path=path, source=source, kind=kind, start=start, end=end, new=after)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it, without those for readers and type checkers."""
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.FunctionDef(name="__repr__"):
            return
        case ast.Assign(targets=[ast.Name(id="msg")]) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.keyword(arg="strict"):  # of zip, mostly: it guards against the impossible
            return
        case ast.keyword(arg="repr"):  # of a field: as a `__repr__`
            return
    if hasattr(node, "lineno"):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in FOR_READERS:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _code(child)


def _ideas(node: ast.AST) -> Iterator[tuple[str, list[ast.AST], str, str]]:
    """Yield the changes of a node: the kind, the parts, a pattern in or between them, new text."""
    match node:
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            yield "comparison", [left, right], *_signs(COMPARISONS[type(sign)])
        case (
            ast.BinOp(left=left, op=sign, right=right)
            | ast.AugAssign(target=left, op=sign, value=right)
        ) if type(sign) in ARITHMETIC:
            yield "arithmetic", [left, right], *_signs(ARITHMETIC[type(sign)])
        case ast.BoolOp(op=sign, values=[left, right, *_]):
            yield "logic", [left, right], *_signs(LOGIC[type(sign)])
        case ast.UnaryOp(op=ast.Not()):
            yield "negation", [node], r"^not\s*", ""
        case ast.Constant(value=bool(flag)):
            yield "flag", [node], ".+", str(not flag)
        case ast.Constant(value=int(number)):
            yield "number", [node], ".+", str(number + 1)
        case ast.Expr(value=ast.Call()):
            yield "call", [node], ".+", "pass"
        case ast.Return(value=ast.AST() as value) if not _is_false(value):
            yield "return", [node], ".+", "return None"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "condition", [test], "(.+)", r"not (\1)"


def _is_false(value: ast.AST) -> bool:
    """Recognise False: to return None instead is no other answer."""
    return isinstance(value, ast.Constant) and value.value is False


def _signs(pair: tuple[str, str]) -> tuple[str, str]:
    return re.escape(pair[0]), pair[1]


def chosen(found: list[Change], count: int, dice: random.Random) -> list[Change]:
    """Choose real changes at random, about as many of each kind."""
    kinds: dict[str, list[Change]] = {}
    for change in found:
        kinds.setdefault(change.kind, []).append(change)
    picked: list[Change] = []
    while kinds and len(picked) < count:
        kind = dice.choice(sorted(kinds))
        change = kinds[kind].pop(dice.randrange(len(kinds[kind])))
        if change.is_real():
            picked.append(change)
        if not kinds[kind]:
            del kinds[kind]
    return picked
