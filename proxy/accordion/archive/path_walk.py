"""Walking a JSON path (RFC 9535) through a document, at a bounded cost. See paths.py.

Who wrote the path may mean ill, and the document too. So a path is short, has few segments and at most two that
descend; its filters look at single values only; and every node that is looked at is paid for from a budget, as is every
filter's work. A path that runs out of it gives what it had found until then.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec
import re2
from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathError, JSONPathNode, JSONPathNodeList, JSONPathQuery
from jsonpath_rfc9535.filter_expressions import (
    ComparisonExpression,
    Expression,
    FilterContext,
    FilterExpression,
    FilterQuery,
    FunctionExtension,
    LogicalExpression,
    PrefixExpression,
)
from jsonpath_rfc9535.function_extensions import ExpressionType, FilterFunction
from jsonpath_rfc9535.segments import JSONPathRecursiveDescentSegment
from jsonpath_rfc9535.selectors import FilterSelector

from accordion.archive.paths import BadPath, Selected
from accordion.archive.patterns import BadPattern, compiled

PATH_MOST: Final = 500
"""Characters of a path."""
_SEGMENTS, _SELECTORS, _DESCENTS = 32, 32, 2
_BUDGET: Final = 250_000
"""Nodes that are looked at for one path; about 0.3 s at the worst."""
_PATTERN_MOST: Final = 200
_COMPILING: Final = 2_000
_DOTTED: Final = re.compile(r"(?<!\.)\.\[")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}")

E = TypeVar("E", bound=Expression)


def walked(document: Any, path: str, most: int) -> Selected:
    """See `paths.select`."""
    meter = _Meter(_BUDGET)
    query = _compiled(path.strip(), meter)
    node = _Node(value=document, location=(), parent=None, root=document)
    node.meter = meter
    nodes: Any = [node]
    for segment in query.segments:
        nodes = segment.resolve(nodes)
    found: list[tuple[str, Any]] = []
    try:
        meter.spend(1 + _width(document))
        for each in nodes:
            if len(found) == most:
                return Selected(tuple(found), False)
            found.append((_place(each.location), each.value))
    except _Spent:
        return Selected(tuple(found), False)
    except (JSONPathError, RecursionError) as error:
        raise BadPath(_why(error)) from error
    return Selected(tuple(found), True)


def _compiled(path: str, meter: _Meter) -> JSONPathQuery:
    if not path or len(path) > PATH_MOST:
        raise BadPath(f"a path has 1 to {PATH_MOST} characters")
    try:
        query = _parsed(path, meter)
    except JSONPathError as error:
        spelled = _spelled(path)
        if spelled == path:
            raise BadPath(_why(error)) from error
        try:
            query = _parsed(spelled, meter)
        except JSONPathError as again:
            raise BadPath(_why(again)) from again
    if len(query.segments) > _SEGMENTS or sum(len(each.selectors) for each in query.segments) > _SELECTORS:
        raise BadPath(f"a path has at most {_SEGMENTS} segments")
    if sum(isinstance(each, JSONPathRecursiveDescentSegment) for each in query.segments) > _DESCENTS:
        raise BadPath(f"a path descends (`..`) at most {_DESCENTS} times")
    for segment in query.segments:
        for selector in segment.selectors:
            if isinstance(selector, FilterSelector):
                selector.expression = _Paid(_bounded(selector.expression, meter), meter, 2 + len(path) // 4)
    return query


def _parsed(path: str, meter: _Meter) -> JSONPathQuery:
    try:
        return _Environment(meter).compile(path)
    except (RecursionError, ValueError, ArithmeticError, LookupError) as error:
        raise JSONPathError("it cannot be read") from error


def _spelled(path: str) -> str:
    """A path as models write it at times (`items[0].name`, `.items[]`), spelled out."""
    if not path.startswith("$"):
        path = "$" + path if path[0] in ".[" else "$." + path
    return _DOTTED.sub("[", path.replace("[]", "[*]"))


def _place(location: tuple[int | str, ...]) -> str:
    """A value's own path, short where it can be."""
    return "$" + "".join(_step(each) for each in location)


def _step(key: int | str) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if _NAME.fullmatch(key) else f"[{msgspec.json.encode(key).decode()}]"


def _why(error: Exception) -> str:
    return (str(error) or "it cannot be read")[:200]


# -- what it costs -------------------------------------------------------------------------------------------------


class _Spent(Exception):
    """The budget was spent."""


class _Meter:
    """What is left of the budget."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise _Spent


class _Node(JSONPathNode):
    """A node that pays for its children, and for the width of each that will be walked through."""

    __slots__ = ("meter",)
    meter: _Meter

    def new_child(self, value: object, key: int | str, parent: JSONPathNode | None) -> JSONPathNode:
        self.meter.spend(1 + _width(value))
        child = _Node(value=value, location=(*self.location, key), parent=parent, root=self.root)
        child.meter = self.meter
        return child


def _width(value: object) -> int:
    return len(value) if isinstance(value, list | dict) else 0


class _Environment(JSONPathEnvironment):
    """The functions of the standard, those with patterns by RE2, for one path."""

    def __init__(self, meter: _Meter) -> None:
        self._meter = meter
        super().__init__()

    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        self.function_extensions["match"] = _Matching(self._meter, whole=True)
        self.function_extensions["search"] = _Matching(self._meter, whole=False)


class _Matching(FilterFunction):
    """`match` and `search`, in linear time."""

    def __init__(self, meter: _Meter, *, whole: bool) -> None:
        self._meter = meter
        self._whole = whole
        self._known: tuple[str, re2._Regexp | None] = ("", None)

    @property
    def arg_types(self) -> list[ExpressionType]:
        return [ExpressionType.VALUE, ExpressionType.VALUE]

    @property
    def return_type(self) -> ExpressionType:
        return ExpressionType.LOGICAL

    def __call__(self, text: object, pattern: object) -> bool:
        if not isinstance(text, str) or not isinstance(pattern, str) or len(pattern) > _PATTERN_MOST:
            return False
        if self._known[0] != pattern or self._known[1] is None:
            self._meter.spend(_COMPILING)
            try:
                self._known = (pattern, compiled(pattern))
            except BadPattern as error:
                raise JSONPathError(str(error)) from error
        known = self._known[1]
        if known is None:
            return False
        self._meter.spend(2 + len(text) * known.programsize // 200)
        data = text.encode("utf-8", "replace")
        return (known.fullmatch(data) if self._whole else known.search(data)) is not None


class _Paid(FilterExpression):
    """A filter that pays for each value it looks at."""

    __slots__ = ("_meter", "_price")

    def __init__(self, expression: FilterExpression, meter: _Meter, price: int) -> None:
        super().__init__(expression.token, expression.expression)
        self._meter = meter
        self._price = price

    def evaluate(self, context: FilterContext) -> bool:
        self._meter.spend(self._price)
        return super().evaluate(context)


def _bounded(expression: E, meter: _Meter) -> E:
    """A filter's expression in which nothing is walked through, and comparisons are of single values."""
    if isinstance(expression, FilterQuery):
        if not expression.query.singular_query():
            raise BadPath("a filter looks at single values only, such as @.name or @[0].id")
    elif isinstance(expression, ComparisonExpression):
        for side in (expression.left, expression.right):
            _bounded(side, meter)
        expression.left = _Side(expression.left, meter)
        expression.right = _Side(expression.right, meter)
    elif isinstance(expression, LogicalExpression):
        _bounded(expression.left, meter)
        _bounded(expression.right, meter)
    elif isinstance(expression, PrefixExpression):
        _bounded(expression.right, meter)
    elif isinstance(expression, FilterExpression):
        _bounded(expression.expression, meter)
    elif isinstance(expression, FunctionExtension):
        for argument in expression.args:
            _bounded(argument, meter)
    return expression


class _Whole:
    """A list or an object in a comparison: nothing else is equal to it."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Whole):
            raise JSONPathError("lists and objects cannot be compared here")
        return False


class _Side(Expression):
    """One side of a comparison. Two long documents that are nearly equal would take long to tell apart."""

    __slots__ = ("_inner", "_meter")

    def __init__(self, inner: Expression, meter: _Meter) -> None:
        super().__init__(inner.token)
        self._inner = inner
        self._meter = meter

    def evaluate(self, context: FilterContext) -> object:
        value = self._inner.evaluate(context)
        if isinstance(value, JSONPathNodeList):
            if len(value) != 1:
                return value
            value = value[0].value
        if isinstance(value, str):
            self._meter.spend(len(value) // 1_000)
        return _Whole() if isinstance(value, list | dict) else value
