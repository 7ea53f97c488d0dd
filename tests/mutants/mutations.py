"""Which small changes of a module there are: each leaves valid Python that means something else.

The kinds are those that reviews miss: a clause, a call or an assignment left out, a condition
turned round, one too many or too few, arguments in the wrong order, a guard that is gone. Messages,
annotations, assertions and what a module does when it is imported are left alone.

Pure: source text in, source texts out.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import random
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

#: How likely each kind is drawn, compared with the others: the subtle ones more often.
WEIGHTS = {
    "clause left out": 4.0,
    "condition negated": 1.0,
    "comparison shifted": 3.0,
    "comparison turned": 1.0,
    "number shifted": 2.0,
    "call left out": 3.0,
    "assignment left out": 3.0,
    "deletion left out": 3.0,
    "jump left out": 3.0,
    "guard left out": 2.0,
    "arguments swapped": 0.7,
    "argument left out": 2.0,
    "term left out": 2.0,
    "element left out": 2.0,
    "truth turned": 2.0,
    "returned early": 1.0,
}

#: Functions for people's eyes only.
UNTOUCHED_FUNCTIONS = frozenset({"__repr__", "__str__"})

#: What is only said, not done.
SPEECH = frozenset({"logger", "logging", "warnings", "log"})

SHIFTED: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
TURNED: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}


#: What has a place in the source.
Placed: TypeAlias = ast.stmt | ast.expr | ast.keyword


class Mutant(NamedTuple):
    """One change of one module."""

    module: str
    kind: str
    #: The function that is changed, with its class.
    function: str
    line: int
    #: The line as it stands, what of it (and more) is changed, and the whole module after that.
    text: str
    before: str
    after: str
    source: str

    @property
    def id(self) -> str:
        """The same for the same change of the same module, wherever it stands by then."""
        whole = "\0".join((self.module, self.source))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]

    @property
    def where(self) -> str:
        return f"{self.module}:{self.line}"

    def diff(self, original: str) -> str:
        lines = difflib.unified_diff(
            original.splitlines(), self.source.splitlines(), self.module, self.module, "", "", 2, ""
        )
        return "\n".join(lines)


class _Change(NamedTuple):
    kind: str
    #: Where the change stands, as positions in the encoded source.
    start: int
    end: int
    after: str


class _Finder(ast.NodeVisitor):
    """Finds all changes of one module."""

    def __init__(self, source: str) -> None:
        self._text = source.encode()
        self._starts = [0]
        for line in self._text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._function: list[str] = []
        self._depth = 0
        self._changes: list[tuple[str, _Change]] = []

    def find(self, tree: ast.Module) -> list[tuple[str, _Change]]:
        self.visit(tree)
        return self._changes

    # --- positions ---

    def _start(self, node: Placed) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: Placed) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _source(self, node: Placed) -> str:
        return self._text[self._start(node) : self._end(node)].decode()

    def _replace(self, kind: str, node: Placed, after: str) -> None:
        self._splice(kind, self._start(node), self._end(node), after)

    def _splice(self, kind: str, start: int, end: int, after: str) -> None:
        if self._depth:  # Only what functions do.
            change = _Change(kind, start, end, after)
            self._changes.append((".".join(self._function), change))

    # --- where nothing is changed ---

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in UNTOUCHED_FUNCTIONS:
            return
        self._function.append(node.name)
        self._depth += 1
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._early_return(node)
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1
        self._function.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._function.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._function.pop()

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion is a test already."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """What is raised is for people; whether it is raised, conditions say."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    # --- statements ---

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Constant):
            return  # A docstring, or an ellipsis.
        if isinstance(call, ast.Call):
            if _speaks(call):
                return
            if self._source(node) != "super().__init__()":
                self._replace("call left out", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        fields = (ast.Attribute, ast.Subscript)
        if all(isinstance(target, fields) for target in node.targets):
            first = node.targets[0]
            makes = self._function[-1:] == ["__init__"] and isinstance(first, ast.Attribute)
            if not makes:  # Without the attribute nothing would work.
                self._replace("assignment left out", node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace("assignment left out", node, "pass")
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace("deletion left out", node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace("jump left out", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace("jump left out", node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._replace("jump left out", node, "pass")
            return
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            self._replace("truth turned", value, str(not value.value))
            return
        self.visit(value)

    def visit_If(self, node: ast.If) -> None:
        last = node.body[-1]
        if not node.orelse and isinstance(last, ast.Return | ast.Continue | ast.Raise | ast.Break):
            self._replace("guard left out", node, "pass")
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._condition(node.test)
        self.generic_visit(node)

    def _early_return(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A function that answers nothing does nothing; one that answers effects, has none."""
        body = [one for one in node.body if not _is_docstring(one)]
        answers = ast.unparse(node.returns) if node.returns is not None else ""
        value = {"None": "return", "list[Effect]": "return []"}.get(answers)
        if value is None or len(body) < 2 or node.name == "__init__":
            return
        if any(isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(node)):
            return
        first = body[0]
        indent = " " * first.col_offset
        start = self._start(first)
        self._splice("returned early", start, start, f"{value}\n{indent}")

    # --- expressions ---

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._replace("clause left out", condition, "True")
            self._condition(condition)
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._replace("condition negated", test, f"({self._source(test.operand)})")
        elif isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in TURNED:
            pass  # The comparison is turned.
        elif not isinstance(test, ast.NamedExpr):
            self._replace("condition negated", test, f"(not ({self._source(test)}))")

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = "and" if isinstance(node.op, ast.And) else "or"
        for at in range(len(node.values)):
            if _names(node.values[at]):
                continue  # What follows needs the name.
            rest = [self._source(value) for i, value in enumerate(node.values) if i != at]
            self._replace("clause left out", node, "(" + f" {word} ".join(rest) + ")")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left: ast.expr = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            start, end = self._end(left), self._start(right)
            for kind, table in (("comparison shifted", SHIFTED), ("comparison turned", TURNED)):
                if type(operator) in table:
                    text = self._text[start:end].decode()
                    old = _written(operator)
                    if text.count(old) == 1:  # No comment in between.
                        self._splice(kind, start, end, text.replace(old, table[type(operator)]))
            left = right
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace("truth turned", node, str(not value))
        elif isinstance(value, int):
            self._replace("number shifted", node, str(value + 1))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add) and not isinstance(node.right, ast.Constant):
            self._replace("term left out", node, f"({self._source(node.left)})")
            self._replace("term left out", node, f"({self._source(node.right)})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        args = node.args
        for at in range(len(args) - 1):
            one, other = args[at], args[at + 1]
            if isinstance(one, ast.Starred) or isinstance(other, ast.Starred):
                continue
            if _simple(one) and _simple(other) and self._source(one) != self._source(other):
                between = self._text[self._end(one) : self._start(other)].decode()
                self._splice(
                    "arguments swapped",
                    self._start(one),
                    self._end(other),
                    f"{self._source(other)}{between}{self._source(one)}",
                )
        for at, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                self._leave_out("argument left out", [*args, *node.keywords], len(args) + at)
        self.generic_visit(node)

    def visit_List(self, node: ast.List) -> None:
        self._elements(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        self._elements(node)

    def _elements(self, node: ast.List | ast.Tuple) -> None:
        """Leave out a part of what is put together; other displays have a fixed length."""
        if isinstance(node.ctx, ast.Load):
            for at, element in enumerate(node.elts):
                if isinstance(element, ast.Starred) and len(node.elts) > 1:
                    self._leave_out("element left out", node.elts, at)
        self.generic_visit(node)

    def _leave_out(self, kind: str, among: Sequence[ast.expr | ast.keyword], at: int) -> None:
        """Leave out one of several that commas separate."""
        node = among[at]
        if at + 1 < len(among):
            start, end = self._start(node), self._start(among[at + 1])
        elif at:
            start, end = self._end(among[at - 1]), self._end(node)
        else:
            start, end = self._start(node), self._end(node)
        self._splice(kind, start, end, "")


def mutants(module: str, source: str) -> list[Mutant]:
    """All changes of a module, in the order of the source; some may be no valid Python."""
    encoded = source.encode()
    found: dict[tuple[int, int, str], Mutant] = {}
    for function, change in _Finder(source).find(ast.parse(source)):
        start, end, after = change.start, change.end, change.after
        text = (encoded[:start] + after.encode() + encoded[end:]).decode()
        line = encoded[:start].count(b"\n") + 1
        before = encoded[start:end].decode()
        stands = source.splitlines()[line - 1].strip()
        one = Mutant(module, change.kind, function, line, stands, before, after, text)
        found.setdefault((start, end, after), one)
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.kind, mutant.after))


def drawn(module: str, source: str, count: int, seed: int) -> list[Mutant]:
    """So many valid mutants of a module, by chance and weight; a larger sample has these, too."""
    candidates = mutants(module, source)
    chance = random.Random(f"{seed}:{module}")
    keys = [chance.random() ** (1 / WEIGHTS[mutant.kind]) for mutant in candidates]
    order = sorted(range(len(candidates)), key=lambda at: -keys[at])
    meaning = ast.dump(ast.parse(source))
    valid = (candidates[at] for at in order if _is_valid(candidates[at], meaning))
    return list(islice(valid, count))


def _is_valid(mutant: Mutant, meaning: str) -> bool:
    """Whether it is Python, and something else than before."""
    try:
        compile(mutant.source, mutant.module, "exec", dont_inherit=True)
    except SyntaxError:  # A walrus that would need brackets, say.
        return False
    return ast.dump(ast.parse(mutant.source)) != meaning


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _speaks(call: ast.Call) -> bool:
    """Whether a call only tells people something."""
    name = call.func
    while isinstance(name, ast.Attribute):
        name = name.value
    return isinstance(name, ast.Name) and name.id in SPEECH


def _names(node: ast.expr) -> bool:
    return any(isinstance(one, ast.NamedExpr) for one in ast.walk(node))


def _simple(node: ast.expr) -> bool:
    """Whether an argument might be taken for another one."""
    return isinstance(node, ast.Name | ast.Attribute)


def _written(operator: ast.cmpop) -> str:
    written = {
        ast.Lt: "<",
        ast.LtE: "<=",
        ast.Gt: ">",
        ast.GtE: ">=",
        ast.Eq: "==",
        ast.NotEq: "!=",
    }
    words = {ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}
    return {**written, **words}[type(operator)]
