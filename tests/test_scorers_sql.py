import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoring import complaint, graded, suite_of

from workbench.scorers import database
from workbench.scorers.database import run_query
from workbench.scorers.sql import equal_results, is_ordered, read_query

SCRIPT = """
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE orders(
  id INTEGER PRIMARY KEY, city TEXT, total REAL, day TEXT DEFAULT (date('now'))
);
INSERT INTO orders(id, city, total) VALUES
  (1, 'Leeds', 10.5), (2, 'Lille', 20.25), (3, 'Leeds', 0.1), (4, '北京', NULL),
  (5, 'O''Hara; x', 7);
COMMIT;
"""


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """What ends a query is its steps: those are the same however long we stand still."""

    def timer(seconds: float, *what: Any) -> threading.Timer:
        return threading.Timer(60 * seconds, *what)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "threading", SimpleNamespace(Timer=timer))
        yield


def suite(**options: Any) -> Any:
    return suite_of({"name": "sql_result", **options}, resources={"database.sql": SCRIPT})


def score(target: str, output: str) -> float:
    assert complaint(suite(), target) == ""
    found = graded(suite(), target, output)
    assert not found.flags, found.details
    return found.score


BY_CITY = "SELECT city, count(*) FROM orders GROUP BY city"


@pytest.mark.parametrize(
    ("target", "output", "right"),
    [
        (BY_CITY, BY_CITY, True),
        (BY_CITY, "select CITY as c, COUNT(id) AS n from Orders group by 1 order by 2 desc;", True),
        (BY_CITY, "SELECT count(*), city FROM orders GROUP BY city", False),
        (BY_CITY, "SELECT city, count(*) FROM orders WHERE id < 5 GROUP BY city", False),
        (BY_CITY, BY_CITY + " UNION ALL SELECT 'Leeds', 2", False),
        ("SELECT id FROM orders ORDER BY id", "SELECT id FROM orders ORDER BY id DESC", False),
        ("SELECT id FROM orders ORDER BY id DESC", "SELECT id FROM orders ORDER BY -id", True),
        ("SELECT sum(total) FROM orders", "SELECT 7 + 0.1 + 20.25 + 10.5", True),
        ("SELECT 3", "SELECT 3.0", True),
        ("SELECT 0.3", "SELECT 0.1 + 0.2", True),
        ("SELECT 0.3", "SELECT 0.3000001", False),
        ("VALUES (0.3, 2.0), (0.3, 1.0)", "VALUES (0.1 + 0.2, 1), (0.3, 2)", True),
        ("VALUES (0.3, 2.0), (0.3, 1.0)", "VALUES (0.1 + 0.2, 1), (0.3, 1)", False),
        ("SELECT 3", "SELECT '3'", False),
        ("SELECT 10000000001", "SELECT 10000000002", False),
        ("SELECT NULL", "SELECT total FROM orders WHERE id = 4", True),
        ("SELECT 1 WHERE 0", "SELECT 2 WHERE 0", True),
        ("SELECT 1 WHERE 0", "SELECT 1, 2 WHERE 0", False),
        ("SELECT x'00ff'", "SELECT x'00FF'", True),
        ("SELECT city FROM orders WHERE id = 5", "SELECT 'O''Hara; x' -- it's; this\n", True),
        ("SELECT date('now')", "SELECT CURRENT_DATE", True),
        ("SELECT DISTINCT day FROM orders", "SELECT '2026-01-01'", True),
        ("SELECT strftime('%Y')", "SELECT strftime('%Y', 'now', 'localtime')", True),
        ("SELECT printf('%.2f|%d', 1.5, 7), trim('xax', 'x')", "VALUES ('1.50|7', 'a')", True),
        ("SELECT date('2026-01-31', '+1 day')", "VALUES ('2026-02-01')", True),
    ],
)
def test_results_are_compared_not_texts(target: str, output: str, right: bool) -> None:
    assert score(target, output) == float(right)


@pytest.mark.parametrize(
    ("output", "query"),
    [
        ("SELECT 1", "SELECT 1"),
        ("SELECT 1;\nThis counts.", "SELECT 1"),
        ("SELECT 1\n\nThis query's result is one.", "SELECT 1"),
        ("Here it is:\n```sql\nSELECT 1;\n```\nHope it helps!", "SELECT 1"),
        ("```SELECT 1```", "SELECT 1"),
        ("```sqlite\nSELECT 1", "SELECT 1"),
        ("Sure!\nSELECT 1", "SELECT 1"),
        ("With joy.\nWITH t AS (SELECT 1) SELECT * FROM t", "WITH t AS (SELECT 1) SELECT * FROM t"),
        ("SELECT ';' ; DROP TABLE orders", "SELECT ';'"),
        ("SELECT 1 /* ; */ + 1; x", "SELECT 1 /* ; */ + 1"),
        ("I cannot.", "I cannot."),
    ],
)  # fmt: skip
def test_the_query_in_an_output(output: str, query: str) -> None:
    assert read_query(output) == query


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order\n by a", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("SELECT rank() OVER (ORDER BY a) FROM t", False),
        ("SELECT 'order by' FROM t -- order by", False),
        ("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1", True),
    ],
)
def test_only_its_own_order_counts(query: str, ordered: bool) -> None:
    assert is_ordered(query) is ordered


ENDLESS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) "


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", "no query"),
        ("SELEC 1", "syntax error"),
        ("SELECT nope FROM orders", "no such column"),
        ("DELETE FROM orders", "not authorized"),
        ("DROP TABLE orders", "not authorized"),
        ("CREATE TABLE x AS SELECT 1", "not authorized"),
        ("INSERT INTO orders(id) VALUES (9)", "not authorized"),
        ("ATTACH 'evil.db' AS e", "not authorized"),
        ("VACUUM INTO 'evil.db'", "authoriz"),
        ("PRAGMA hard_heap_limit = 0", "not authorized"),
        ("SELECT * FROM pragma_database_list", "not authorized"),
        ("SELECT load_extension('x.so')", "not authorized"),
        ("SELECT random()", "not authorized"),
        ("BEGIN", "not authorized"),
        (ENDLESS + "SELECT count(*) FROM t", "too long"),
        (ENDLESS + "SELECT x FROM t", "more than 10000 rows"),
        (ENDLESS + "SELECT x, zeroblob(99000) FROM t ORDER BY 1 DESC", "memory"),
        (ENDLESS + "SELECT group_concat(x) FROM t", ""),
        ("SELECT zeroblob(1000000000)", "too big"),
        ("SELECT printf('%.*c', 1000000000, 'x')", "user-defined"),
        ("SELECT printf('%099999999d', 1)", "user-defined"),
        ("SELECT trim(hex(zeroblob(40000)), hex(zeroblob(40000)))", "user-defined"),
        ("SELECT replace(hex(zeroblob(40000)), '0', hex(zeroblob(40000)))", "too big"),
        ("SELECT " + "(" * 1000 + "1" + ")" * 1000, ""),
        ("SELECT 1" + " UNION SELECT 1" * 200, "too many terms"),
        ("SELECT '" + "x" * 150_000 + "'", "too"),
        ("SELECT 1 \x00", ""),
        ("SELECT '\ud800'", ""),
        ("SELECT abs(-9223372036854775808)", "overflow"),
        ("SELECT * FROM orders a, orders b, orders c, orders d, orders e, orders f, orders g,"
         " orders h, orders i, orders j, orders k, orders l WHERE a.id + f.id + l.id > 99",
         "too long"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_invalid_and_harms_nothing(
    output: str, said: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = graded(suite(seconds=1.0), BY_CITY, output)
    assert (found.score, found.flags) == (0.0, ("invalid_sql",))
    assert said in found.details["error"]
    assert not list(tmp_path.iterdir())
    assert graded(suite(), BY_CITY, BY_CITY).score == 1.0


def test_text_that_is_not_utf_8_is_a_result() -> None:
    assert score("SELECT 1", "SELECT CAST(x'ff' AS TEXT)") == 0.0


def test_the_wall_clock_ends_what_steps_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "threading", threading)
    long_step = "SELECT " + " + ".join(
        ["instr(zeroblob(99999), CAST(hex(zeroblob(20000)) AS BLOB))"] * 90
    )
    run_query(SCRIPT, long_step, 0.05)  # ends, with a result or without


def test_many_threads_query_at_once() -> None:
    before = threading.enumerate()
    wanted = run_query(SCRIPT, BY_CITY, 1)
    found: list[Any] = []

    def work() -> None:
        found.extend(run_query(SCRIPT, BY_CITY, 1) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 30 and all(equal_results(wanted, one, ordered=False) for one in found)
    left = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
    assert not [t for t in left if t not in before]


cells = st.none() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(("a", "b", "'"))


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_rows_in_another_order_are_the_same_rows(rows: list[tuple[Any, Any]], order: Any) -> None:
    def query(of: list[tuple[Any, Any]]) -> str:
        def literal(cell: Any) -> str:
            if cell is None:
                return "NULL"
            return "'" + cell.replace("'", "''") + "'" if isinstance(cell, str) else repr(cell)

        return "VALUES " + ", ".join(f"({literal(a)}, {literal(b)})" for a, b in of)

    shuffled = list(rows)
    order.shuffle(shuffled)
    assert score(query(rows), query(shuffled)) == 1.0
    assert score(query(rows), query([*shuffled, rows[0]])) == 0.0


@pytest.mark.parametrize(
    ("target", "script", "said"),
    [
        (3, SCRIPT, "must be an SQL query, not a number"),
        (" ", SCRIPT, "must be an SQL query"),
        ("SELECT nope FROM orders", SCRIPT, "does not run on database.sql: no such column"),
        ("DELETE FROM orders", SCRIPT, "not authorized"),
        ("SELECT 1", "CREATE TABLE t(a); INSERT INTO u VALUES (1);", "no such table: u"),
        ("SELECT 1", "", "makes no table"),
        ("SELECT 1", "ATTACH 'x.db' AS x; CREATE TABLE x.t(a);", "not authorized"),
        ("SELECT 1", "CREATE TABLE t(a); PRAGMA journal_mode = WAL;", "not authorized"),
        ("SELECT 1", "CREATE TABLE t AS SELECT random() AS a;", "not authorized"),
        ("SELECT 1", None, "there is no database.sql beside suite.yaml"),
    ],
)
def test_check_of_a_target(target: Any, script: str | None, said: str) -> None:
    resources = {} if script is None else {"database.sql": script}
    assert said in complaint(suite_of("sql_result", resources=resources), target)


def test_a_script_may_be_long() -> None:
    rows = ", ".join(f"({i}, '{'x' * 100}')" for i in range(5_000))
    script = f"CREATE TABLE t(a, b); INSERT INTO t VALUES {rows};"
    assert len(run_query(script, "SELECT a FROM t", 2).rows) == 5_000
    assert sys.getsizeof(script) > 500_000
