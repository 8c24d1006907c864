"""A study whose values come from several evaluations is noticed."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import optuna
import pandas
import pytest
from sklearn.model_selection import KFold
from sklearn.model_selection import StratifiedKFold
from sklearn.tree import DecisionTreeClassifier

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = np.where(X[:, 0] + RNG.normal(size=120) > 0, "yes", "no")


def objective_of(X=X, y=Y, **options):
    options = {"param_grid": {"alpha": [0.01, 0.1, 1.0]}, "cv": 5} | options
    return treecv_objective(options.pop("estimator", PegasosClassifier()), X, y, **options)


def told(study, objective, n_trials=2):
    """Run trials and return the sentences of the UserWarnings."""
    study.sampler = objective.grid_sampler()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study.optimize(objective, n_trials=n_trials)
    return [str(one.message) for one in caught if one.category is UserWarning]


def changed(array, where):
    array = array.copy()
    array[where] = array[where - 1] + 1 if array.dtype.kind == "f" else "maybe"
    return array


@pytest.mark.parametrize(
    "other",
    [
        {"y": changed(Y, 7)},
        {"X": X[:110], "y": Y[:110]},
        {"cv": StratifiedKFold(5)},
        {"random_state": 1},
        {"n_repeats": 2},
        {"scoring": "hinge"},
    ],
    ids=["y", "rows", "splitter", "random_state", "n_repeats", "scoring"],
)
def test_another_evaluation_in_a_study_is_noticed_once(other):
    study = optuna.create_study(study_name="mixed")
    assert told(study, objective_of()) == []
    (sentence,) = told(study, objective_of(**other))
    assert sentence.startswith(
        "the study 'mixed' has values from other data, weights, folds or scoring "
        "(treecv_evaluation "
    )
    assert "use a new study instead" in sentence


@pytest.mark.parametrize(("first", "second"), [("treecv", "fit"), ("fit", "auto")])
def test_fits_in_a_study_of_one_pass_are_noticed(first, second):
    study = optuna.create_study(study_name="mixed")
    assert told(study, objective_of(method=first)) == []
    (sentence,) = told(study, objective_of(method=second))
    kinds = {
        "fit": "models trained by fit",
        "treecv": "models trained in",
        "auto": "models trained in",
    }
    assert f"'mixed' has scores of {kinds[first]}" in sentence
    assert f"objective returns scores of {kinds[second]}" in sentence
    assert told(study, objective_of(method=second), n_trials=1) == [sentence]


@pytest.mark.parametrize(("first", "second"), [("treecv", "standard"), ("auto", "treecv")])
def test_methods_of_one_pass_go_together(first, second):
    study = optuna.create_study()
    for method in (first, second):
        assert told(study, objective_of(method=method)) == []


def test_the_same_evaluation_goes_on_with_a_study():
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(study_name="one", storage=storage)
    others = [
        objective_of(),
        objective_of(X.copy(), Y.copy()),
        pickle.loads(pickle.dumps(objective_of())),
        objective_of(cache=None, n_jobs=2, batch_size=1, scoring="error"),
        objective_of(estimator=AveragedSGDClassifier()),
        objective_of(cv=KFold(5), shuffle=False),
    ]
    for objective in others[:-1]:
        study = optuna.load_study(study_name="one", storage=storage)
        assert told(study, objective, 1) == []
    assert len(told(study, others[-1], 1)) == 1  # other folds
    assert list(study.user_attrs) == ["treecv_evaluation"]


@pytest.mark.slow
def test_a_search_in_a_storage_does_not_report_trials_of_other_rows(tmp_path):
    X, y = RNG.normal(size=(1000, 4)), np.arange(1000) % 2
    X[:, 0] += 3 * y
    noise = X.copy()
    noise[np.linspace(0, 999, 100).astype(int)[:-1] + 1] = 0  # all but every tenth row stay
    scores = [fitted(X, y, tmp_path), fitted(noise, y, tmp_path), fitted(noise, y, None)]
    assert scores[0] > scores[1] == scores[2]


def fitted(X, y, folder):
    storage = None if folder is None else f"sqlite:///{folder}/study.db"
    grid = {"alpha": [0.01, 0.1]}
    search = TreeCVSearchCV(PegasosClassifier(), param_grid=grid, random_state=0, storage=storage)
    return search.fit(X, y).best_score_


class Tree(DecisionTreeClassifier):
    """It takes any data frame and any argument of fit."""

    def fit(self, X, y, other=None):
        return super().fit(np.asarray(X)[:, :1], y)

    def predict(self, X):
        return super().predict(np.asarray(X)[:, :1])


class Drawing:
    """A scorer whose state is a generator."""

    __name__ = "drawing"

    def __init__(self):
        self.generator = np.random.RandomState(0)

    def __call__(self, estimator, X, y):
        return self.generator.random()


@pytest.mark.filterwarnings("ignore:scoring='drawing' may not")
@pytest.mark.parametrize(
    ("nameless", "why"),
    [
        ({"X": pandas.DataFrame({"a": X[:, 0], "b": [[1]] * 120})}, "X or y contains objects"),
        ({"scoring": Drawing()}, "the code or state of the scorer drawing"),
        ({"params": {"other": np.random.RandomState(0)}}, "params contains an object"),
    ],
)
def test_what_has_no_name_is_not_taken_for_the_same(nameless, why):
    options = {"estimator": Tree(), "param_grid": {"max_depth": [1, 2]}, "method": "fit"}
    options["keep_outputs"] = False
    objective = objective_of(**options, **nameless)
    study = optuna.create_study(study_name="mixed", direction=objective.direction)
    assert told(study, objective) == []
    assert told(study, pickle.loads(pickle.dumps(objective))) == []
    (sentence,) = told(study, objective_of(**options, **nameless))
    assert f"with the values of this objective, because {why}" in sentence
    assert "use a new study instead" in sentence


@pytest.mark.parametrize(
    ("before", "after", "is_noticed"),
    [
        ("progressive", "folds", True),
        ("folds", "mean", True),
        ("progressive", "progressive", False),
        (None, "progressive", False),
        ("blocks", None, False),
    ],
)
def test_other_reports_in_a_study_are_noticed(before, after, is_noticed):
    study = optuna.create_study(study_name="mixed", pruner=optuna.pruners.NopPruner())
    assert told(study, objective_of(report=before), 1) == []
    sentences = told(study, objective_of(report=after), 1)
    assert len(sentences) == is_noticed
    if is_noticed:
        assert f"report={before!r}" in sentences[0]
        assert f"report={after!r}" in sentences[0]
