"""Docstrings are complete, examples and snippets do what the docs say, names are all listed."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
from pathlib import Path
import re
import runpy
import sys
from textwrap import dedent

import numpy as np
from numpydoc.validate import validate
import pandas as pd
from processes import Script
import pytest
import sklearn.datasets

import optuna_treecv
import optuna_treecv.accelerate
import optuna_treecv.dashboard
import optuna_treecv.history
import optuna_treecv.paper
import optuna_treecv.report
import optuna_treecv.results
import optuna_treecv.testing

ROOT = Path(__file__).resolve().parents[2]

# Not required: extended summaries, examples and references for each method.
NOT_ASKED = {"ES01", "EX01", "GL01", "SA01", "SA04", "SS05", "SS06", "RT02", "YD01", "PR09"}


# Public methods that only the tree uses.
INSIDE = {"make_kernel", "respond"}


# Public modules; two of them are separate because their imports are optional.
MODULES = [
    optuna_treecv,
    optuna_treecv.accelerate,
    optuna_treecv.dashboard,
    optuna_treecv.paper,
    optuna_treecv.report,
    optuna_treecv.results,
]
# Classes whose __init__ users do not call.
MADE_BY_US = {
    *("Advice", "CVResult", "Candidate", "Choice", "ConformalClassifier"),
    *("ConformalRegressor", "Curve", "FeatureSelection", "FoldAverage"),
    *("FoldModels", "Honest", "Interval", "Nested"),
    *("PairedDifference", "Score", "Threshold", "TreeCVObjective"),
}
# Public names of other modules.
ELSEWHERE = [
    "history.load_evaluations",
    "history.load_fold_scores",
    "history.iter_fold_scores",
    "history.forget",
]


def public() -> list[str]:
    names = [f"optuna_treecv.{name}" for name in ELSEWHERE]
    for module, name in [(m, name) for m in MODULES for name in m.__all__]:
        names.append(f"{module.__name__}.{name}")
        thing = getattr(module, name)
        if inspect.isclass(thing):
            own = [
                n
                for n, member in vars(thing).items()
                if inspect.isfunction(member) and not n.startswith("_")
            ]
            names += [f"{module.__name__}.{name}.{n}" for n in own if n not in INSIDE]
    return names


def test_docstring_of_the_contract():
    assert not doctest.testmod(optuna_treecv.testing).failed


@pytest.mark.slow
@pytest.mark.parametrize("name", public())
def test_docstring(name):
    made_by_us = name.rpartition(".")[2] in MADE_BY_US
    left_out = NOT_ASKED | ({"PR01"} if made_by_us else set())
    problems = [
        f"{code} {text}" for code, text in validate(name)["errors"] if code not in left_out
    ]
    assert not problems


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (module, name)
        for module in MODULES
        if module not in (optuna_treecv.accelerate, optuna_treecv.results)
        for name in module.__all__
    ],
)
def test_examples_of_docstrings(module, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing = getattr(module, name)
    tests = doctest.DocTestFinder().find(thing, name, globs={})  # those of methods, too
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert runner.failures == 0
    if name not in MADE_BY_US:
        assert runner.tries > 0


def snippets_of_the_readme() -> list[str]:
    readme = (ROOT / "README.md").read_text()
    return re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)


def few_forest_patches(return_X_y, as_frame):
    """Return rows in the form of Covertype."""
    assert return_X_y and as_frame
    rng = np.random.default_rng(0)
    soils = [f"Soil_Type_{i}" for i in range(40)]
    X = pd.DataFrame(rng.normal(size=(500, 10)), columns=[f"number {i}" for i in range(10)])
    X[soils] = np.eye(40)[rng.integers(40, size=len(X))]
    return X, pd.Series(1 + (X["number 0"] + rng.normal(size=len(X)) > 0))


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.filterwarnings("error:.*at the (upper|lower) end of its range")
def test_snippets_of_the_readme(number, tmp_path, monkeypatch):
    pytest.importorskip("optuna_dashboard")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", few_forest_patches)
    code = compile(snippets_of_the_readme()[number], "README.md", "exec")
    exec(code, {})
    if number == 1:
        exec(code, again := {})
        assert len(again["study"].trials) == 16  # a grid with no points left runs no trial


def test_the_example_of_an_own_learner_keeps_the_contract(monkeypatch):
    path = ROOT / "examples" / "own_learner.py"
    assert len(path.read_text().splitlines()) < 65
    spec = importlib.util.spec_from_file_location("own_learner", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_learner", module)  # pickle looks up classes there
    spec.loader.exec_module(module)
    contract = module.TestNearestMean()
    names = [name for name in dir(contract) if name.startswith("test_")]
    assert len(names) >= 8
    for name in names:
        getattr(contract, name)()


@pytest.mark.slow  # it waits
def test_the_quickstart_prints_what_it_should(tmp_path):
    def run() -> list[str]:
        script = Script(ROOT / "examples" / "quickstart.py", folder=tmp_path)
        printed = script.stdout.read()
        assert script.wait() == 0, script.stderr.read()
        return re.sub(r"[0-9.]+ ms", "0 ms", printed).splitlines()

    shown = (ROOT / "tests" / "quickstart.txt").read_text()
    shown = re.sub(r"[0-9.]+ ms", "0 ms", shown).splitlines()
    assert run()[: len(shown) - 2] == shown[:-2]  # the last two depend on optuna-dashboard
    again = run()
    assert again[:16] == shown[:16]
    assert "    found in the store     78,525" in again


@pytest.mark.slow
def test_the_example_with_bikes_goes_on(tmp_path, monkeypatch, capsys):
    lightgbm = pytest.importorskip("lightgbm")
    update, n_trees = lightgbm.Booster.update, 2
    monkeypatch.setattr(  # few trees, so that it is quick
        lightgbm.Booster,
        "update",
        lambda self: self.current_iteration() < n_trees and update(self),
    )
    path = ROOT / "examples" / "bike_sharing.py"
    assert len(path.read_text().splitlines()) < 100
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTUNA_TREECV_DATA", str(tmp_path))

    def run(n_trials: int) -> str:
        monkeypatch.setattr(sys, "argv", [str(path), str(n_trials)])
        runpy.run_path(str(path))
        return capsys.readouterr().out

    (tmp_path / "made").mkdir()
    monkeypatch.chdir(tmp_path / "made")
    there_is_none = re.escape(
        f"There is no file {tmp_path / 'bike_sharing_hour.npz'}: a made table"
    )
    assert re.match(rf"{there_is_none} takes its place.\n0 of 1 trials are done.\nBest: ", run(1))
    monkeypatch.chdir(tmp_path)
    hours = np.arange(330 * 24)  # in place of the real ones, of which there are 17,379
    columns = {"hr": hours % 24, "weekday": hours // 24 % 7, "season": hours // 2160 + 1}
    columns |= {"weathersit": hours % 3, "temp": np.sin(hours)}
    X = np.column_stack(list(columns.values())).astype(np.float32)
    np.savez("bike_sharing_hour.npz", X=X, y=hours % 24 + hours // 2160, feature_names=[*columns])
    assert run(1).startswith("0 of 1 trials are done.\nBest: {'learning_rate': ")
    printed = run(2)
    assert printed.startswith("1 of 2 trials are done.\n")
    assert printed.endswith("optuna-dashboard sqlite:///bike_study.db\n")
    evaluations = optuna_treecv.history.load_evaluations("sqlite:///bike_store.db")
    assert evaluations["trial_number"].tolist() == [0, 1]
    assert set(evaluations["method"]) == {"boosting"}
    assert set(evaluations["n_folds"]) == {10}


def test_the_commands_of_the_readme_are_there():
    readme = (ROOT / "README.md").read_text()
    first = "python -m pip install '.[pandas]' && python examples/quickstart.py\n"
    assert f"\n{first}" in readme
    assert first in (ROOT / ".ci" / "run").read_text()
    tests = "python -m pip install '.[test]' && pytest -n auto\n"
    assert f"\n{tests}" in readme
    assert tests in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_links_of_the_markdown_files_lead_somewhere():
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text())
        for link in links:
            assert link.startswith("https://") or (ROOT / link).exists(), link


def test_examples_scale_within_the_folds():
    """``scale(X)`` before a cross-validation uses the test rows."""
    # All methods get the same rows; the quickstart shows a store, which finds no Pipeline again.
    exempt = {"when_is_it_worth_it.py", "treecv_folds.py", "quickstart.py"}
    for folder in ("optuna_treecv", "examples", "docs/snippets", "hub"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            lines = [line for line in text.splitlines() if re.search(r"\bscale\(X\)", line)]
            is_fitted_alone = all(re.search(r"[.](fit|score)\(", line) for line in lines)
            assert is_fitted_alone or path.name in exempt, path


SNIPPETS = sorted((ROOT / "docs" / "snippets").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", SNIPPETS, ids=lambda path: path.stem)
def test_a_snippet_prints_what_its_page_shows(path, tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "user_guide" / f"{path.stem}.rst").read_text()
    assert f".. literalinclude:: ../snippets/{path.name}\n" in page
    assert len(path.read_text().splitlines()) <= 40
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path))
    printed = capsys.readouterr().out.splitlines()
    assert printed
    for line in printed:
        assert f"   {line}\n" in page, line


def test_the_reference_shows_the_methods_that_pages_link_to():
    template = (ROOT / "docs" / "_templates" / "autosummary" / "class.rst").read_text()
    shown = re.findall(r'"(\w+)"', template.partition("ours = [")[2].partition("]")[0])
    for page in PAGES:
        for name in re.findall(r":(?:meth|attr):`[^`]*[.](\w+)>?`", page.read_text()):
            assert name in shown, f"{page.name}: {name}"


def test_the_user_guide_stays_short():
    pages = [page for page in PAGES if page.parent.name == "user_guide"]
    assert len(pages) == 13 + 1  # and the index
    assert sum(len(page.read_text().split()) for page in pages) <= 15_000


PAGES = sorted(
    page
    for page in (ROOT / "docs").rglob("*.rst")
    if "gallery" not in page.parts  # generated
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_snippets_of_a_page_compile(page):
    for block in re.findall(r"\.\. code-block:: python\n\n((?:(?: .*)?\n)+)", page.read_text()):
        compile(dedent(block), page.name, "exec")


def test_the_snippet_of_the_first_page_is_that_of_the_readme():
    page = (ROOT / "docs" / "index.rst").read_text()
    snippet, _ = snippets_of_the_readme()
    assert snippet in "\n".join(line.removeprefix("   ") for line in page.splitlines())


def test_every_public_name_is_in_the_docs():
    page = (ROOT / "docs" / "reference" / "index.rst").read_text()
    listed = set()
    module = ""
    for line in page.splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif re.fullmatch(r"   \w+", line):
            listed.add(f"{module}.{line.strip()}")
    wanted = {f"{module.__name__}.{name}" for module in MODULES for name in module.__all__}
    wanted |= {f"optuna_treecv.{name}" for name in ELSEWHERE}
    contracts = {f"optuna_treecv.testing.{name}Contract" for name in ("Engine", "Learner")}
    assert listed == wanted | contracts
    members = vars(optuna_treecv.TreeCVObjective).items()
    methods = [n for n, member in members if inspect.isfunction(member) and not n.startswith("_")]
    assert "grid_sampler" in methods
    assert all(f":meth:`TreeCVObjective.{name}`" in page for name in methods)
