"""The notebooks' contract, and the driver that runs them."""

import ast
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from workbench import notebooks
from workbench.context import new_run
from workbench.errors import JobFailure, RecipeError
from workbench.notebooks import NotebookFailure, execute

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_five() -> None:
    assert [p.stem[:2] for p in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_contract(path: Path) -> None:
    """Thin, parameterized, without outputs: text, parameters, one call, a look at its record."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert notebook.cells[1].metadata.tags == ["parameters"]
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert len(code) <= 12
    for cell in code:
        assert cell.outputs == [] and cell.execution_count is None
        assert len(cell.source.splitlines()) <= 8
        tree = ast.parse(cell.source)
        for node in ast.walk(tree):
            assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.For | ast.While)
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or node.names[0].name]
                assert names[0].split(".")[0] in ("workbench", "pathlib"), names
    for line in code[0].source.splitlines():
        parsed = ast.parse(line).body[0]
        assert isinstance(parsed, ast.AnnAssign) and "  # " in line, "name: str = value  # help"
    # Whatever the parameters are, it says which run it is about.
    assert code[1].source.endswith("context = open_run(run_name)\ncontext")
    last = ast.parse(code[-1].source).body[-1]
    assert isinstance(last, ast.Expr) and ast.unparse(last).startswith("show(")


def _notebook(path: Path, *sources: str) -> Path:
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    )
    parameters = nbformat.v4.new_code_cell('run_name: str = ""  # a run')
    parameters.metadata["tags"] = ["parameters"]
    notebook.cells = [parameters, *map(nbformat.v4.new_code_cell, sources)]
    nbformat.write(notebook, path)
    return path


def test_driver_runs_and_stamps(tmp_path: Path) -> None:
    notebook = _notebook(tmp_path / "n.ipynb", "print('run is', run_name)")
    before = notebook.read_bytes()
    out = tmp_path / "executed" / "n.ipynb"
    execute(notebook, out, {"run_name": "r1"}, cwd=tmp_path, stamp={"step": "gate"})
    copy = nbformat.read(out, as_version=4)
    assert "run is r1" in str(copy.cells[-1].outputs)
    assert copy.metadata.workbench["step"] == "gate"
    assert len(copy.metadata.workbench["notebook_sha256"]) == 64
    assert notebook.read_bytes() == before


@pytest.mark.parametrize(
    ("said", "again"),
    [
        ("Kernel didn't respond in 60 seconds", True),
        ("Kernel died before replying to kernel_info", True),
        ("Kernel died", False),  # while it worked
    ],
)
def test_a_kernel_that_never_began_is_started_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, again: bool
) -> None:
    """A port that it was promised can be taken before it binds it."""
    run, begun = notebooks._interruptible, []

    def first_fails(work: Callable[[], None]) -> None:
        begun.append(work)
        if len(begun) == 1:
            raise RuntimeError(said)
        run(work)

    monkeypatch.setattr(notebooks, "_interruptible", first_fails)
    notebook, out = (
        _notebook(tmp_path / "n.ipynb", "print('run is', run_name)"),
        tmp_path / "o.ipynb",
    )
    expected = contextlib.nullcontext() if again else pytest.raises(JobFailure, match=said)
    with expected:
        execute(notebook, out, {"run_name": "r1"}, cwd=tmp_path, stamp={})
    assert len(begun) == 1 + again
    assert out.exists() == again


def test_driver_refuses_an_unknown_parameter(tmp_path: Path) -> None:
    notebook = _notebook(tmp_path / "n.ipynb", "1 + 1")
    with pytest.raises(RecipeError, match="no parameter 'run_nam'") as caught:
        execute(notebook, tmp_path / "o.ipynb", {"run_nam": "x"}, cwd=tmp_path, stamp={})
    assert "did you mean 'run_name'" in caught.value.fix
    assert not (tmp_path / "o.ipynb").exists()


def test_driver_does_not_believe_an_early_exit(tmp_path: Path) -> None:
    notebook = _notebook(tmp_path / "n.ipynb", "import sys; sys.exit(0)", "print('never')")
    with pytest.raises(NotebookFailure, match="not completed"):
        execute(notebook, tmp_path / "o.ipynb", {"run_name": ""}, cwd=tmp_path, stamp={})


def test_driver_keeps_the_copy_of_a_failure(tmp_path: Path) -> None:
    notebook = _notebook(tmp_path / "n.ipynb", "raise ValueError('broken here')")
    with pytest.raises(NotebookFailure, match="ValueError: broken here") as caught:
        execute(
            notebook, tmp_path / "o.ipynb", {"run_name": ""}, cwd=tmp_path, stamp={"step": "gate"}
        )
    assert "broken here" in (tmp_path / "o.ipynb").read_text()
    assert str(tmp_path / "o.ipynb") == caught.value.where
    shutil.rmtree(tmp_path / ".ipynb_checkpoints", ignore_errors=True)


def test_a_run_that_was_opened_says_which_it_is(project: Path) -> None:
    said = repr(new_run(project / "recipe.yaml"))
    assert said == f"run 'smoke' of {project / 'recipe.yaml'}, kept in {project / 'results/smoke'}"
