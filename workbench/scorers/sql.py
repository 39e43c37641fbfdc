"""The scorer of an SQL query: it is run on the suite's own database and its result compared. Pure.

How it is run, and what it may do, is `workbench.scorers.database`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from workbench.scorers.base import Grade, kind, shown
from workbench.scorers.database import MOST_BYTES, Result, Row, broken, run_query
from workbench.suite_spec import Sample, SqlScorer

if TYPE_CHECKING:
    from workbench.suites import Suite

_FENCE = re.compile(r"```(?:[ \t]*(?:sql|sqlite)\b)?\s*(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_START = re.compile(
    r"^[ \t]*(?:select\b|values\s*\("
    r"|with\s+(?:recursive\s+)?[\w\"`\[\]]+\s*(?:\([^()]*\)\s*)?as\b)",
    re.IGNORECASE | re.MULTILINE,
)
#: What a semicolon or a bracket means nothing in: texts, names, comments.
_OPAQUE = re.compile(
    r"'(?:[^']|'')*(?:'|\Z)|\"(?:[^\"]|\"\")*(?:\"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z)"
    r"|--[^\n]*|/\*.*?(?:\*/|\Z)",
    re.DOTALL,
)


def sql_result(suite: Suite, sample: Sample, output: str) -> Grade:
    """1 where the query of the output gives the rows the target query gives, else 0.

    Rows are compared as a multiset, and in order where the target query orders them itself. Names
    of columns do not count, their number and order do. Numbers that are not whole are equal within
    one part in 10^9. A query that does not run is `invalid_sql`.
    """
    options = suite.spec.scorer
    assert isinstance(options, SqlScorer)
    script = suite.resources[options.database]
    query = read_query(output)
    found = run_query(script, query, options.seconds)
    if found.error:
        return Grade(0.0, ("invalid_sql",), {"error": shown(found.error, 300)})
    wanted = run_query(script, sample.target, options.seconds)
    right = not wanted.error and equal_results(wanted, found, ordered=is_ordered(sample.target))
    details = {"rows": len(found.rows), "wanted_rows": len(wanted.rows), "columns": found.columns}
    return Grade(float(right), (), details)


def check_query(suite: Suite, sample: Sample) -> str | None:
    """What is wrong with a target of `sql_result` or with the database, or None."""
    options = suite.spec.scorer
    assert isinstance(options, SqlScorer)
    if not isinstance(sample.target, str) or not sample.target.strip():
        return f"'target' must be an SQL query, not {kind(sample.target)}"
    found = run_query(suite.resources[options.database], sample.target, options.seconds)
    return f"'target' does not run on {options.database}: {found.error}" if found.error else None


def check_database(suite: Suite) -> str | None:
    """What is wrong with the suite's database, or None."""
    options = suite.spec.scorer
    assert isinstance(options, SqlScorer)
    script = suite.resources.get(options.database)
    if script is None:
        return f"'scorer.database': there is no {options.database} beside suite.yaml"
    error = broken(script)
    return f"'scorer.database': {options.database} does not run: {error}" if error else None


def read_query(output: str) -> str:
    """The query in an output.

    The first code fence where there is one, and of that (or of the whole) what stands from the
    first line that begins like a query (SELECT, WITH ... AS, VALUES) up to the first semicolon, or
    up to an empty line where there is no semicolon. Where no line begins so, all of it.
    """
    text = output[: 2 * MOST_BYTES]
    fence = _FENCE.search(text)
    text = fence.group(1) if fence else text
    start = _START.search(text)
    text = text[start.start() :] if start else text
    bare = _blank(text)
    end = bare.find(";")
    if end < 0:
        gap = re.search(r"\n[ \t\r]*\n", bare)
        end = gap.start() if gap else len(text)
    return text[:end].strip()


def is_ordered(query: str) -> bool:
    """True where a query orders its rows itself, not only inside brackets."""
    depth, kept = 0, []
    for c in _blank(query):
        depth += (c == "(") - (c == ")")
        kept.append(c if depth == 0 else " ")
    return re.search(r"\border\s+by\b", "".join(kept), re.IGNORECASE) is not None


def equal_results(wanted: Result, found: Result, *, ordered: bool) -> bool:
    """True where two results hold the same rows, in the same order if it counts."""
    if wanted.columns != found.columns or len(wanted.rows) != len(found.rows):
        return False
    if ordered:
        return all(map(_equal_rows, wanted.rows, found.rows))
    # Rows that differ in something exact never match, so only rows alike but for numbers are tried.
    groups: defaultdict[Row, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for side, result in enumerate((wanted, found)):
        for row in result.rows:
            groups[tuple(_exact(cell) for cell in row)][side].append(row)
    return all(_same_rows(*pair) for pair in groups.values())


# --------------------------------------------------------------------------- inside


def _blank(text: str) -> str:
    """A query with its texts, quoted names and comments blanked; as long as it was."""
    return _OPAQUE.sub(lambda match: " " * len(match.group()), text)


def _exact(cell: Any) -> Any:
    """What of a cell must be equal exactly; numbers are all alike here."""
    return "number" if isinstance(cell, int | float) else (type(cell).__name__, cell)


def _same_rows(wanted: list[Row], found: list[Row]) -> bool:
    """True where rows can be paired off; they differ in numbers alone."""
    if len(wanted) != len(found):
        return False
    left = sorted(found)
    for row in sorted(wanted):
        # Sorted alike, so that the match is the first but where rounding changed the order.
        at = next((i for i, other in enumerate(left) if _equal_rows(row, other)), None)
        if at is None:
            return False
        del left[at]
    return True


def _equal_rows(wanted: Row, found: Row) -> bool:
    return all(map(_equal_cells, wanted, found))


def _equal_cells(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        if isinstance(wanted, int) and isinstance(found, int):
            return wanted == found
        return math.isclose(wanted, found, rel_tol=1e-9, abs_tol=1e-9)
    return type(wanted) is type(found) and bool(wanted == found)
