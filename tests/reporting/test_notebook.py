"""What notebooks show: small HTML that says what was found, and the notebook in examples/."""

from __future__ import annotations

import ast
import json
from pathlib import Path
import re
from xml.etree import ElementTree

import numpy as np
import optuna
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.svm import SVC

from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import select
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_study.ipynb"
X, Y = load_breast_cancer(return_X_y=True)
X = (X - X.mean(axis=0)) / X.std(axis=0)


def rows(html: str) -> dict[str, str]:
    """Return the table of well-formed HTML."""
    root = ElementTree.fromstring(html.replace("<br>", ""))
    cells = [(row[0].text, row[1].text) for row in root.iter("tr")]
    assert len(dict(cells)) == len(cells)
    return dict(cells)


def test_a_result_shows_its_folds_and_what_it_cost():
    result = tree_cross_validate(PegasosClassifier(), X, Y, cv=100)
    html = result._repr_html_()
    shown = rows(html)
    assert shown["error"].startswith(f"{result.mean:.6g} ± ")
    assert shown["folds"] == "100"
    assert shown["evaluated by"] == "method='treecv', because PegasosClassifier has partial_fit"
    assert f"{result.n_updates:,}; k separate trainings" in shown["rows trained on"]
    assert shown["95 % interval"].count(" to ") == 1
    assert html.count("M") == 100 + 1 + html.count("Method")  # a tick for each fold, and the mean
    assert "diverged folds" not in shown


@pytest.mark.parametrize("scoring", [["accuracy", "roc_auc"], pooled("roc_auc"), "roc_auc"])
def test_results_of_other_scores(scoring):
    result = tree_cross_validate(LogisticRegression(), X, Y, cv=5, scoring=scoring)
    shown = rows(result._repr_html_())
    assert set(result.scores) <= shown.keys()
    assert ("95 % interval" in shown) == (scoring == ["accuracy", "roc_auc"])


def test_results_without_a_strip():
    for cv in (0.3, "loo"):
        html = tree_cross_validate(SVC(), X[:60], Y[:60], cv=cv)._repr_html_()
        assert rows(html)
    half = tree_cross_validate(PegasosClassifier(), X, Y, cv="loo")._repr_html_()
    assert len(half) < 10_000  # whatever the number of folds


def test_names_are_escaped():
    scoring = {"<b>&'": "accuracy"}
    html = tree_cross_validate(LogisticRegression(), X, Y, cv=3, scoring=scoring)._repr_html_()
    assert "<b>&'" in rows(html)


def test_an_objective_shows_what_trials_will_do():
    D, t = load_diabetes(return_X_y=True)
    objective = treecv_objective(Ridge(), D, t, param_grid={"alpha": [0.1, 1.0]}, cv=7)
    shown = rows(objective._repr_html_())
    assert shown["folds"] == "7 folds"
    assert shown["each trial"] == objective.explain()
    assert "0.1" in shown["searched: alpha"]
    by_callable = treecv_objective(lambda trial: Ridge(trial.suggest_float("a", 1, 2)), D, t)
    assert "each trial" not in rows(by_callable._repr_html_())


def test_the_repr_of_an_objective_names_what_it_evaluates():
    D, t = load_diabetes(return_X_y=True)
    objective = treecv_objective(Ridge(), D, t, param_grid={"alpha": [0.1, 1.0]}, cv=7)
    assert repr(objective) == (
        "TreeCVObjective(Ridge, searched=<alpha>, cv='7 folds', direction='minimize')"
    )
    assert str(objective).splitlines() == [
        "minimize squared_error over 7 folds",
        f"searched: alpha, {objective.param_distributions['alpha']}",
        objective.explain(),
    ]
    by_callable = treecv_objective(lambda trial: Ridge(trial.suggest_float("a", 1, 2)), D, t)
    assert str(by_callable) == repr(by_callable)
    assert repr(by_callable) == "TreeCVObjective(<callable>, direction='minimize')"


def test_a_choice_shows_the_trial_and_how_sure_it_is():
    objective = treecv_objective(
        PegasosClassifier(), X, Y, param_grid={"alpha": [1e-4, 1e-2, 1.0]}, cv=20
    )
    study = optuna.create_study(sampler=objective.grid_sampler())
    study.optimize(objective)
    choice = select(study, objective, rule="one_se")
    shown = rows(choice._repr_html_())
    assert shown["trial"] == f"{choice.trial.number} of 3"
    assert shown["params"] == f"alpha={choice.trial.params['alpha']!r}"
    assert shown["corrected for the choice"].startswith(f"{choice.honest.mean:.6g} (")


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_its_cells_return():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, object] = {}
    n_shown = 0
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"] and cell["execution_count"] is None
        parsed = ast.parse("".join(cell["source"]))
        last = parsed.body[-1]
        if isinstance(last, ast.Expr):
            parsed.body.pop()
        exec(compile(parsed, NOTEBOOK.name, "exec"), names)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
            n_shown += bool(re.match("<div><strong>", getattr(shown, "_repr_html_", str)()))
    assert n_shown == 3  # an objective, a result and a choice
    assert np.isfinite(names["study"].best_value)
