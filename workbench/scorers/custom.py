"""The scorer a user wrote: `module:function`, or `file.py:function` beside suite.yaml.

It is called as ``score(sample, output)``: the sample as a dict (`id`, `target` and its fields), and
what the model said, of tool calls the JSON text that `workbench.scorers.grade` is given.

A file's text is in `Suite.resources`, so that it is part of the suite's digest and a changed scorer
is a changed suite; a module's is not, so that it is for code that is installed and has a version.
The function is the user's: whatever it does wrong is an error that names its file and line and the
sample, and never a score. It runs in the workbench's own process, as the suite's author wants it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workbench.digest import sha256_text
from workbench.errors import SuiteError
from workbench.scorers.base import Grade, kind, shown
from workbench.suite_spec import PythonScorer, Sample

if TYPE_CHECKING:
    from workbench.suites import Suite

Function = Callable[[dict[str, Any], str], Any]
#: What a function of the user's must be, as messages say it.
SIGNATURE = "def score(sample: dict, output: str) -> float, from 0 to 1"


def python(suite: Suite, sample: Sample, output: str) -> Grade:
    """What the user's function gives for the sample (as a dict) and the output: 0 to 1.

    Raises:
        SuiteError: there is no such function, it raised, or gave something else.
    """
    function = load(suite)
    try:
        score = function(sample.model_dump(), output)
    except KeyboardInterrupt:
        raise
    except BaseException as bad:  # SystemExit, CancelledError: of the user's function, not ours
        raise SuiteError(
            f"scorer '{_named(suite)}' raised {type(bad).__name__}: {_words(bad)} "
            f"(sample '{sample.id}')",
            where=_line_that_raised(function, bad),
            fix="mend that line; 'workbench rescore' needs no model",
        ) from bad
    if not 0 <= _number(score) <= 1:  # NaN is neither
        said = f"{_number(score):g}" if isinstance(score, Real) else kind(score)
        raise SuiteError(
            f"scorer '{_named(suite)}' gave {said} for sample '{sample.id}'",
            where=_first_line(function),
            fix="return a number from 0 to 1",
        )
    return Grade(_number(score))


def load(suite: Suite) -> Function:
    """The function that the suite names.

    Raises:
        SuiteError: there is none, or its file or module does not load.
    """
    place, _, name = _named(suite).partition(":")
    if place.endswith(".py"):
        source = suite.resources.get(place)
        if source is None:
            raise SuiteError(
                f"there is no {place} beside suite.yaml",
                where=str(suite.path),
                fix="write the scorer into that file, or correct 'scorer.function'",
            )
        found = _run(source, str(suite.path / place)).get(name)
    else:
        found = getattr(_module(place, suite), name, None)
    if not callable(found):
        raise SuiteError(
            f"{place} has no function '{name}'",
            where=str(suite.path / place) if place.endswith(".py") else place,
            fix="correct 'scorer.function', which is file.py:function or module:function",
        )
    function: Function = found
    return function


def module_source(suite: Suite) -> dict[str, str]:
    """``module:NAME`` -> text of the module the scorer is in; empty where it is in a file.

    For the suite's digest: two versions of a scorer must not be taken for one. What the module
    imports in its turn is not in it.
    """
    if not isinstance(suite.spec.scorer, PythonScorer):
        return {}
    place = _named(suite).partition(":")[0]
    if place.endswith(".py") or "/" in place:
        return {}
    try:
        found = importlib.util.find_spec(place)
    except (ImportError, ValueError, AttributeError):
        return {}
    origin = Path(found.origin) if found and found.origin else None
    try:
        return {f"module:{place}": origin.read_text("utf-8", "replace") if origin else ""}
    except OSError:
        return {}


def check_function(suite: Suite) -> str | None:
    """What is wrong with the user's function before it is called, or None.

    A second line is what to do, a third the line of the user's file that is to be mended.
    """
    try:
        _callable(suite, load(suite))
    except SuiteError as bad:
        where = bad.where if re.search(r":\d+\Z", bad.where) else ""
        return f"'scorer.function': {bad.what}\n{bad.fix}\n{where}"
    return None


def _callable(suite: Suite, function: Function) -> None:
    """Can it be called with a sample and an output?

    Raises:
        SuiteError: it cannot.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # one written in C says nothing of its arguments
    try:
        signature.bind({}, "")
    except TypeError as bad:
        raise SuiteError(
            f"'{_named(suite)}' cannot be called with (sample, output): {bad}",
            where=_first_line(function),
            fix=f"write it as: {SIGNATURE}",
        ) from None


def _named(suite: Suite) -> str:
    options = suite.spec.scorer
    assert isinstance(options, PythonScorer)
    return options.function


@lru_cache(maxsize=16)
def _run(source: str, file: str) -> dict[str, Any]:
    """The names a file defines.

    Raises:
        SuiteError: it is not Python, or raises.
    """
    module = ModuleType(f"workbench_suite_scorer_{sha256_text(file + source)[:16]}")
    module.__file__ = file
    # As an import does: dataclasses and pickle look a class's module up by its name.
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, file, "exec", dont_inherit=True), vars(module))
    except SyntaxError as bad:
        raise SuiteError(
            f"not Python: {bad.msg}", where=f"{file}:{bad.lineno or 1}", fix="mend that line"
        ) from bad
    except (Exception, SystemExit) as bad:
        lines = [f.lineno for f in traceback.extract_tb(bad.__traceback__) if f.filename == file]
        raise SuiteError(
            f"the file raises {type(bad).__name__}: {_words(bad)}",
            where=f"{file}:{lines[-1] if lines else 1}",
            fix="mend that line",
        ) from bad
    return vars(module)


def _module(place: str, suite: Suite) -> object:
    if "/" in place:
        raise SuiteError(
            f"'{place}' is neither a module nor a file that ends in .py",
            where=str(suite.path),
            fix="write file.py:function or module:function",
        )
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as bad:
        raise SuiteError(
            f"module '{place}' cannot be imported: {type(bad).__name__}: {_words(bad)}",
            where=str(suite.path),
            fix="install it beside the workbench, or put the function into a file of the suite",
        ) from bad


def _number(score: Any) -> float:
    try:
        return float(score) if isinstance(score, Real) else math.nan  # NumPy's are Real too
    except OverflowError:
        return math.inf


def _words(bad: BaseException) -> str:
    """Its message on one line: an exception likes to quote what the model said."""
    try:
        said = str(bad)
    except Exception:
        return "(its message cannot be read)"
    return shown("".join(c if c.isprintable() else " " for c in said), 300)


def _line_that_raised(function: Function, bad: BaseException) -> str:
    """The last place in the user's own file, or where the function begins."""
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(bad.__traceback__)
    lines = [f.lineno for f in frames if code is not None and f.filename == code.co_filename]
    return (
        f"{code.co_filename}:{lines[-1]}" if code is not None and lines else _first_line(function)
    )


def _first_line(function: Function) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return getattr(function, "__module__", None) or type(function).__module__
    return f"{code.co_filename}:{code.co_firstlineno}"
