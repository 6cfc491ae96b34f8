"""Conditions on the columns of a result: ``score >= 3 and lang in ["en", "de"]``."""

import ast
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bert_jax.errors import UserError, first_line

_KEY: Final = "score.keep"
_EXAMPLE: Final = (
    'a condition such as score >= 3 or label == "good" and probabilities["good"] > 0.9'
)
_COMPARED: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_ORDERED: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class Threshold(NamedTuple):
    """A number with which a condition compares a column."""

    column: tuple[str, ...]  # name, and the field of a struct
    value: float


class Condition:
    """A condition in Python's syntax, of comparisons, ``in``, ``and``, ``or`` and ``not``.

    Attributes:
        threshold: the first comparison of a column with a number, if there is one.
    """

    def __init__(self, text: str, *, columns: Collection[str] | None) -> None:
        """Parses a condition on `columns`; None allows all.

        Raises UserError if the text is no condition, or names another column.
        """
        self._columns = columns
        self.threshold: Threshold | None = None
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise _wrong(text) from None
        self._text = text
        if not isinstance(tree, ast.BoolOp | ast.UnaryOp | ast.Compare):
            raise _wrong(text)
        self.expression = self._of(tree)

    def kept(self, table: pa.Table) -> pa.Table:
        """Returns the rows for which the condition is true. A comparison with null is not true.

        Raises UserError if the types of a column and a value differ.
        """
        try:
            return table.filter(self.expression)
        except pa.ArrowException as error:
            raise UserError(
                "score.keep_types",
                f"found {self._text}, which does not fit the columns ({first_line(error)})",
                place=_KEY,
            ) from None

    def _of(self, node: ast.expr) -> Any:
        match node:
            case ast.BoolOp(op=op, values=values):
                first, *others = map(self._of, values)
                for other in others:
                    first = first & other if isinstance(op, ast.And) else first | other
                return first
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self._of(operand)
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [left, *others]
                found = None
                for at, op in enumerate(ops):
                    compared = self._compare(sides[at], op, sides[at + 1])
                    found = compared if found is None else found & compared
                return found
        raise _wrong(self._text)

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
        if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple):
            found = self._value(left).isin([self._constant(each) for each in right.elts])
            return found if isinstance(op, ast.In) else ~found
        if isinstance(op, ast.Is | ast.IsNot) and ast.dump(right) == ast.dump(ast.Constant(None)):
            missing = self._value(left).is_null()
            return missing if isinstance(op, ast.Is) else ~missing
        if type(op) not in _COMPARED:
            raise _wrong(self._text)
        for column, constant in ((left, right), (right, left)):
            if isinstance(op, _ORDERED) and self.threshold is None and _is_number(constant):
                path = _path_of(column)
                if path is not None:
                    self.threshold = Threshold(path, float(self._constant(constant)))
        return _COMPARED[type(op)](self._value(left), self._value(right))

    def _value(self, node: ast.expr) -> Any:
        if (path := _path_of(node)) is None:
            return pc.scalar(self._constant(node))
        if self._columns is not None and path[0] not in self._columns:
            raise UserError.unknown("score.keep_column", path[0], self._columns, place=_KEY)
        return pc.field(*path) if len(path) == 1 else pc.field(path)

    def _constant(self, node: ast.expr) -> Any:
        try:
            found = ast.literal_eval(node)
        except ValueError:
            raise _wrong(self._text) from None
        if not isinstance(found, str | int | float | bool):
            raise _wrong(self._text)
        return found


def _path_of(node: ast.expr) -> tuple[str, ...] | None:
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(field))):
            return name, field
    return None


def _is_number(node: ast.expr) -> bool:
    try:
        found = ast.literal_eval(node)
    except ValueError:
        return False
    return isinstance(found, int | float) and not isinstance(found, bool)


def _wrong(text: str) -> UserError:
    return UserError.wrong("score.keep", f"{text:.200}", _EXAMPLE, place=_KEY)
