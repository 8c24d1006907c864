"""``param_distributions="auto"``: the table of recommended spaces."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from processes import Script
import pytest
from sklearn.base import is_classifier
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegressionCV
from sklearn.linear_model import Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils import all_estimators

from optuna_treecv import paper
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.study.recommended import recommended_space
from optuna_treecv.study.recommended import TABLE
from optuna_treecv.study.space import as_space

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spaces.rst"
ENTRIES = [(package, name) for package, names, _ in TABLE for name in names.split()]


@cache
def class_of(package, name):
    if package == "sklearn":
        return dict(all_estimators())[name]
    if package != "optuna_treecv":
        pytest.importorskip(package)
    return getattr(paper if name in paper.__all__ else import_module(package), name)


def rows(seed=0):
    X = np.random.default_rng(seed).normal(size=(100, 4))
    return X, X @ [1.0, -2.0, 0.5, 0.0] + 0.3 * X[:, 0] ** 2


def ends(distribution):
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    return distribution.low, distribution.high


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), ENTRIES)
@pytest.mark.filterwarnings("ignore:.*after one pass", "ignore:.*failed to converge")
def test_the_estimator_takes_the_ends_of_its_space_and_what_lies_between(package, name):
    kind = class_of(package, name)
    quiet = {"verbose": -1} if package == "lightgbm" else {}
    space = recommended_space(kind())
    X, y = rows()
    y = (y > 0).astype(int) if is_classifier(kind()) else y
    y = None if name == "StreamingGaussianDensity" else y
    given = {key: 5 for key in ("n_estimators", "max_iter") if key in space}
    given |= {key: 5 for key in ("n_estimators",) if key in kind().get_params()}
    estimator = kind(**given, **quiet)
    objective = treecv_objective(estimator, X, y, param_distributions="auto", cv=2, batch_size=1)
    left = {key: one for key, one in space.items() if key not in given}
    assert objective.param_distributions == left
    for number in (0, -1):
        params = {key: ends(one)[number] for key, one in left.items()}
        assert np.isfinite(objective.evaluate(params).mean)
    study = optuna.create_study(
        direction=objective.direction, sampler=optuna.samplers.RandomSampler(seed=0)
    )
    study.optimize(objective, n_trials=1)
    assert np.isfinite(study.best_value)


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), ENTRIES)
def test_a_default_that_is_a_number_lies_in_the_space(package, name):
    kind = class_of(package, name)
    for key, distribution in recommended_space(kind()).items():
        default = kind().get_params()[key]
        if isinstance(default, int | float):
            low, high = ends(distribution)
            assert low <= default <= high or (default == 0 and low <= 1e-6), key


def test_pipelines_have_the_space_of_their_last_step():
    alpha = recommended_space(Ridge())["alpha"]
    assert recommended_space(make_pipeline(StandardScaler(), Ridge())) == {"ridge__alpha": alpha}
    nested = Pipeline([("scale", StandardScaler()), ("rest", make_pipeline(Ridge()))])
    assert recommended_space(nested) == {"rest__ridge__alpha": alpha}
    X, y = rows()
    search = TreeCVSearchCV(nested, "auto", n_trials=4, random_state=0).fit(X, y)
    assert set(search.best_params_) == {"rest__ridge__alpha"}
    assert search.best_estimator_.score(X, y) > 0.9


def test_a_parameter_that_is_set_stays_as_it_is():
    assert set(recommended_space(DecisionTreeRegressor(max_depth=3))) == {"min_samples_leaf"}
    X, y = rows()
    search = TreeCVSearchCV(DecisionTreeRegressor(max_depth=3), "auto", n_trials=3, random_state=0)
    search.fit(X, y)
    assert search.best_estimator_.max_depth == 3
    assert set(search.best_params_) == {"min_samples_leaf"}
    with pytest.raises(
        ValueError, match=r"default values, .* for Ridge have other values: alpha=5\.0"
    ):
        treecv_objective(Ridge(5.0), X, y, param_distributions="auto")
    with pytest.raises(ValueError, match="that have their default values"):
        recommended_space(Ridge(np.ones(3)))


class Lasso2(Lasso):
    """A class of one's own, whose parameters may mean something else."""


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (SVC(), "C"),
        (LogisticRegressionCV(), "Cs"),
        (Lasso2(), "alpha"),
        (make_pipeline(StandardScaler(), SVC()), "svc__C"),
    ],
    ids=str,
)
def test_other_estimators_are_refused(estimator, name):
    X, y = rows()
    last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    said = (
        f"param_distributions='auto' has no recommended search space for {type(last).__name__}; "
        f"use a dict such as {{'{name}': "
    )
    with pytest.raises(ValueError, match=said):
        treecv_objective(estimator, X, y > 0, param_distributions="auto")
    with pytest.raises(ValueError, match=said):
        TreeCVSearchCV(estimator, "auto").fit(X, y > 0)


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (SVC(), "C"),
        (make_pipeline(StandardScaler(), SVC()), "svc__C"),
        (KNeighborsRegressor(), "n_neighbors"),
        (OneVsRestClassifier(SVC()), "estimator__C"),
        (FunctionTransformer(), "accept_sparse"),  # it has no number
    ],
    ids=lambda value: type(value).__name__,
)
def test_hints_name_a_parameter_of_the_estimator(estimator, name):
    for space in ({"param_distributions": 3}, {"param_distributions": {}}, {"param_grid": 3}):
        with pytest.raises(ValueError, match=rf"such as {{'{name}': "):
            as_space(estimator, **{"param_distributions": None, "param_grid": None} | space)


def test_a_class_of_the_same_name_elsewhere_is_not_meant():
    other = type("Ridge", (Ridge,), {"__module__": "elsewhere.linear"})
    with pytest.raises(ValueError, match="has no recommended search space for Ridge"):
        recommended_space(other())


@pytest.mark.parametrize("given", ["all", ""])
def test_other_texts_are_refused(given):
    X, y = rows()
    with pytest.raises(ValueError, match="^param_distributions must .* 'auto', got "):
        treecv_objective(Ridge(), X, y, param_distributions=given)
    with pytest.raises(ValueError, match="^param_distributions must .* or 'auto', got "):
        TreeCVSearchCV(Ridge(), given).fit(X, y)


def test_a_callable_suggests_for_itself():
    X, y = rows()
    with pytest.raises(ValueError, match="must be None if estimator is a callable"):
        treecv_objective(lambda trial: Ridge(), X, y, param_distributions="auto")


@pytest.mark.slow
def test_libraries_of_other_learners_are_imported_by_their_users_alone(tmp_path):
    code = (
        "import sys, numpy as np, optuna_treecv\n"
        "from optuna_treecv.study.recommended import recommended_space\n"
        "from sklearn.linear_model import SGDClassifier\n"
        "recommended_space(SGDClassifier())\n"
        "optuna_treecv.tree_cross_validate(SGDClassifier(), np.eye(20), np.arange(20) % 2)\n"
        "river = 'optuna_treecv.engines.treecv.learners.river'\n"
        "others = {'lightgbm', river, 'river', 'xgboost'}\n"
        "assert not others & {*sys.modules}\n"
    )
    (tmp_path / "script.py").write_text(code)
    script = Script(tmp_path / "script.py", folder=tmp_path)
    assert script.wait(60) == 0, script.stderr.read()


def said(distribution):
    """Return a distribution as the page shows it."""
    if isinstance(distribution, CategoricalDistribution):
        return " or ".join(map(repr, distribution.choices))
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    scale = ", log" if distribution.log else ""
    return f"{distribution.low:g} to {distribution.high:g}{scale}"


def as_rst():
    lines = []
    for _, names, space in TABLE:
        lines.append(f"   * - {', '.join(f'``{name}``' for name in names.split())}")
        each = [f"``{key}``: {said(one)}" for key, one in space.items()]
        lines.append(f"     - {'; '.join(each)}")
    return " ".join(" ".join(lines).split())


def test_the_page_shows_the_table():
    text = PAGE.read_text()
    assert as_rst() in " ".join(text.split())
