"""Evaluates a JSON path (RFC 9535) on a document at a limited cost.

Both the path and the document may be malicious. So a path is short, has few segments, and at most two that descend; its
filters compare single values only. Each examined node and the work of each filter is charged to a budget. When the
budget is spent, the values found so far are returned.

The classes of jsonpath-rfc9535 are extended for that, in this module only: the library's own evaluation has no bounds,
and a model writes the paths (`read_artifact`). `tests/archive/test_jsonpath_contract.py` fails when their code changes.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec
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

from accordion.archive.patterns import CompiledPattern, InvalidPattern, compile_pattern
from accordion.model.errors import InvalidPath

PATH_MOST: Final = 500
"""The most characters of a path."""
_SEGMENTS, _SELECTORS, _DESCENTS = 32, 32, 2
_BUDGET: Final = 250_000
"""The number of nodes that are examined for one path; about 0.3 s at worst."""
_PATTERN_MOST: Final = 200
_COMPILING: Final = 2_000
_DOTTED: Final = re.compile(r"(?<!\.)\.\[")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}")

E = TypeVar("E", bound=Expression)


class PathSelection(msgspec.Struct, frozen=True):
    """The values at a path, with their own paths, in the document's order.

    `complete` is False if there may be more: the limit was reached, or the budget was spent.
    """

    values: tuple[tuple[str, Any], ...]
    complete: bool


def select(document: Any, path: str, limit: int) -> PathSelection:
    """Returns at most `limit` values at a path, whose `$` may be left out. Raises InvalidPath.

    Slow for large documents; run it in a thread.
    """
    budget = _WalkBudget(_BUDGET)
    query = _compile(path.strip(), budget)
    node = _MeteredNode(value=document, location=(), parent=None, root=document)
    node.budget = budget
    nodes: Any = [node]
    for segment in query.segments:
        nodes = segment.resolve(nodes)
    values: list[tuple[str, Any]] = []
    try:
        budget.spend(1 + _value_width(document))
        for each in nodes:
            if len(values) == limit:
                return PathSelection(tuple(values), False)
            values.append((_value_path(each.location), each.value))
    except _BudgetExceeded:
        return PathSelection(tuple(values), False)
    except (JSONPathError, RecursionError) as error:
        raise InvalidPath(_describe_error(error)) from error
    return PathSelection(tuple(values), True)


def _compile(path: str, budget: _WalkBudget) -> JSONPathQuery:
    if not path or len(path) > PATH_MOST:
        raise InvalidPath(f"The path must have 1 to {PATH_MOST} characters.")
    try:
        query = _parse(path, budget)
    except JSONPathError as error:
        normalized = _normalize(path)
        if normalized == path:
            raise InvalidPath(_describe_error(error)) from error
        try:
            query = _parse(normalized, budget)
        except JSONPathError as second_error:
            raise InvalidPath(_describe_error(second_error)) from second_error
    if len(query.segments) > _SEGMENTS or sum(len(each.selectors) for each in query.segments) > _SELECTORS:
        raise InvalidPath(f"The path may have at most {_SEGMENTS} segments.")
    if sum(isinstance(each, JSONPathRecursiveDescentSegment) for each in query.segments) > _DESCENTS:
        raise InvalidPath(f"The path may contain `..` at most {_DESCENTS} times.")
    for segment in query.segments:
        for selector in segment.selectors:
            if isinstance(selector, FilterSelector):
                selector.expression = _MeteredFilter(
                    _bound_filter(selector.expression, budget), budget, 2 + len(path) // 4
                )
    return query


def _parse(path: str, budget: _WalkBudget) -> JSONPathQuery:
    try:
        return _PathEnvironment(budget).compile(path)
    except (RecursionError, ValueError, ArithmeticError, LookupError) as error:
        raise JSONPathError("it is no JSONPath") from error


def _normalize(path: str) -> str:
    """Returns the standard form of a path that a model abbreviated (`items[0].name`, `.items[]`)."""
    if not path.startswith("$"):
        path = "$" + path if path[0] in ".[" else "$." + path
    return _DOTTED.sub("[", path.replace("[]", "[*]"))


def _value_path(location: tuple[int | str, ...]) -> str:
    """Returns the path of one value, abbreviated if possible."""
    return "$" + "".join(_path_step(each) for each in location)


def _path_step(key: int | str) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if _NAME.fullmatch(key) else f"[{msgspec.json.encode(key).decode()}]"


def _describe_error(error: Exception) -> str:
    return f"The path cannot be used: {(str(error) or 'it is no JSONPath')[:200].rstrip('.')}."


# -- the budget ----------------------------------------------------------------------------------------------------


class _BudgetExceeded(Exception):
    """Raised when the budget is spent."""


class _WalkBudget:
    """The remaining budget of one path."""

    __slots__ = ("remaining",)

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining

    def spend(self, units: int) -> None:
        self.remaining -= units
        if self.remaining < 0:
            raise _BudgetExceeded


class _MeteredNode(JSONPathNode):
    """A node that charges the budget for its children, and for the width of each."""

    __slots__ = ("budget",)
    budget: _WalkBudget

    def new_child(self, value: object, key: int | str, parent: JSONPathNode | None) -> JSONPathNode:
        self.budget.spend(1 + _value_width(value))
        child = _MeteredNode(value=value, location=(*self.location, key), parent=parent, root=self.root)
        child.budget = self.budget
        return child


def _value_width(value: object) -> int:
    return len(value) if isinstance(value, list | dict) else 0


class _PathEnvironment(JSONPathEnvironment):
    """The standard's functions for one path; those with patterns use RE2."""

    def __init__(self, budget: _WalkBudget) -> None:
        self._budget = budget
        super().__init__()

    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        self.function_extensions["match"] = _LinearMatch(self._budget, is_full_match=True)
        self.function_extensions["search"] = _LinearMatch(self._budget, is_full_match=False)


class _LinearMatch(FilterFunction):
    """The functions `match` and `search` in linear time."""

    def __init__(self, budget: _WalkBudget, *, is_full_match: bool) -> None:
        self._budget = budget
        self._is_full_match = is_full_match
        self._compiled: tuple[str, CompiledPattern | None] = ("", None)

    @property
    def arg_types(self) -> list[ExpressionType]:
        return [ExpressionType.VALUE, ExpressionType.VALUE]

    @property
    def return_type(self) -> ExpressionType:
        return ExpressionType.LOGICAL

    def __call__(self, text: object, pattern: object) -> bool:
        if not isinstance(text, str) or not isinstance(pattern, str) or len(pattern) > _PATTERN_MOST:
            return False
        if self._compiled[0] != pattern or self._compiled[1] is None:
            self._budget.spend(_COMPILING)
            try:
                self._compiled = (pattern, compile_pattern(pattern))
            except InvalidPattern as error:
                raise JSONPathError(str(error)) from error
        compiled = self._compiled[1]
        if compiled is None:
            return False
        self._budget.spend(2 + len(text) * compiled.programsize // 200)
        data = text.encode("utf-8", "replace")
        return (compiled.fullmatch(data) if self._is_full_match else compiled.search(data)) is not None


class _MeteredFilter(FilterExpression):
    """A filter that charges the budget for each value that it examines."""

    __slots__ = ("_budget", "_cost")

    def __init__(self, expression: FilterExpression, budget: _WalkBudget, cost: int) -> None:
        super().__init__(expression.token, expression.expression)
        self._budget = budget
        self._cost = cost

    def evaluate(self, context: FilterContext) -> bool:
        self._budget.spend(self._cost)
        return super().evaluate(context)


def _bound_filter(expression: E, budget: _WalkBudget) -> E:
    """Limits a filter's expression to comparisons of single values. Raises InvalidPath if it has other queries."""
    if isinstance(expression, FilterQuery):
        if not expression.query.singular_query():
            raise InvalidPath("A filter may only use single values, such as @.name or @[0].id.")
    elif isinstance(expression, ComparisonExpression):
        for side in (expression.left, expression.right):
            _bound_filter(side, budget)
        expression.left = _MeteredOperand(expression.left, budget)
        expression.right = _MeteredOperand(expression.right, budget)
    elif isinstance(expression, LogicalExpression):
        _bound_filter(expression.left, budget)
        _bound_filter(expression.right, budget)
    elif isinstance(expression, PrefixExpression):
        _bound_filter(expression.right, budget)
    elif isinstance(expression, FilterExpression):
        _bound_filter(expression.expression, budget)
    elif isinstance(expression, FunctionExtension):
        for argument in expression.args:
            _bound_filter(argument, budget)
    return expression


class _UniqueOperand:
    """A list or an object in a comparison: unequal to any simple value; two raise JSONPathError."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _UniqueOperand):
            raise JSONPathError("lists and objects cannot be compared here")
        return False


class _MeteredOperand(Expression):
    """One side of a comparison, which charges the budget for long strings.

    Lists and objects are not compared, since long documents that are nearly equal take long to compare.
    """

    __slots__ = ("_budget", "_inner")

    def __init__(self, inner: Expression, budget: _WalkBudget) -> None:
        super().__init__(inner.token)
        self._inner = inner
        self._budget = budget

    def evaluate(self, context: FilterContext) -> object:
        value = self._inner.evaluate(context)
        if isinstance(value, JSONPathNodeList):
            if len(value) != 1:
                return value
            value = value[0].value
        if isinstance(value, str):
            self._budget.spend(len(value) // 1_000)
        return _UniqueOperand() if isinstance(value, list | dict) else value
