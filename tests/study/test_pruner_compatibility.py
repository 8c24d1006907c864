"""Reports follow the pruner, and a pruner that does not fit the reports is named."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.pruners import HyperbandPruner
from optuna.pruners import MedianPruner
from optuna.pruners import NopPruner
from optuna.pruners import PatientPruner
from optuna.pruners import PercentilePruner
from optuna.pruners import SuccessiveHalvingPruner
from optuna.pruners import WilcoxonPruner
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.tree import DecisionTreeClassifier
from small_data import data_of

from optuna_treecv import PegasosClassifier
from optuna_treecv import RacingPruner
from optuna_treecv import tree_cross_validate
from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV
from optuna_treecv.study import study_check
from optuna_treecv.study.space import Space

ALPHA = {"alpha": FloatDistribution(1e-6, 1e2, log=True)}
DEPTH = {"max_depth": IntDistribution(1, 6)}
X, Y = data_of(120, 4)


def objective_of(estimator=None, **options):
    if estimator is None or isinstance(estimator, PegasosClassifier):
        options = {"param_distributions": ALPHA} | options
    elif not callable(estimator):
        options = {"param_distributions": DEPTH} | options
    return treecv_objective(estimator or PegasosClassifier(), X, Y, **{"cv": 5} | options)


def reports_of(objective, pruner, n_trials=1):
    study = optuna.create_study(
        directions=objective.directions,
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=pruner,
    )
    study.optimize(objective, n_trials=n_trials)
    return [trial.intermediate_values for trial in study.trials]


def suggesting(trial):
    return PegasosClassifier(alpha=trial.suggest_float("alpha", 1e-6, 1e2, log=True))


EARLY = [
    (RacingPruner(), "progressive"),
    (MedianPruner(), "progressive"),
    (PercentilePruner(25.0), "progressive"),
    (SuccessiveHalvingPruner(), "progressive"),
    (HyperbandPruner(), "progressive"),
    (WilcoxonPruner(), "blocks"),
    (PatientPruner(WilcoxonPruner(), 1), "blocks"),
    (NopPruner(), None),
]


@pytest.mark.parametrize(("pruner", "report"), EARLY)
def test_auto_reports_what_the_pruner_needs(pruner, report):
    estimator = suggesting if isinstance(pruner, MedianPruner | WilcoxonPruner) else None
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = reports_of(objective_of(estimator, report="auto"), pruner)
    assert found == reports_of(objective_of(estimator, report=report), NopPruner())
    assert bool(found[0]) == (report is not None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "options", "pruner", "report"),
    [
        (DecisionTreeClassifier(random_state=0), {}, RacingPruner(), "folds"),
        (None, {"scoring": "roc_auc"}, MedianPruner(), "mean"),
        (None, {"n_epochs": 2}, WilcoxonPruner(), "folds"),
        (
            None,
            {"param_distributions": {"n_epochs": IntDistribution(1, 3)}},
            RacingPruner(),
            "folds",
        ),
    ],
)
def test_auto_reports_folds_where_no_first_pass_can_be_reported(
    estimator, options, pruner, report
):
    found = reports_of(objective_of(estimator, report="auto", **options), pruner, 3)
    assert found == reports_of(objective_of(estimator, report=report, **options), pruner, 3)
    assert len(found[0]) == 5


@pytest.mark.parametrize("options", [{"pooled": True}, {"optimize": ["error", "hinge"]}])
def test_auto_reports_nothing_where_nothing_can_be_pruned(options):
    objective = objective_of(report="auto", scoring=["error", "hinge"], **options)
    assert isinstance(objective.pruner(), NopPruner)
    assert reports_of(objective, MedianPruner()) == [{}]


def test_auto_waits_for_a_study():
    objective = objective_of(report="auto")
    value = objective(optuna.trial.FixedTrial({"alpha": 0.1}))
    assert value == objective.evaluate({"alpha": 0.1}).mean
    copy = pickle.loads(pickle.dumps(objective))
    for one, report in ((objective, "blocks"), (copy, "progressive")):
        pruner = WilcoxonPruner() if report == "blocks" else MedianPruner()
        assert reports_of(one, pruner) == reports_of(objective_of(report=report), NopPruner())
    assert objective(optuna.trial.FixedTrial({"alpha": 0.1})) == value


def test_auto_in_threads_makes_one_kind_of_reports():
    objective = objective_of(report="auto")
    study = optuna.create_study(pruner=WilcoxonPruner(n_startup_steps=100))
    study.optimize(objective, n_trials=8, n_jobs=4)
    (steps,) = {tuple(one.intermediate_values) for one in study.trials}
    assert steps == tuple(reports_of(objective_of(report="blocks"), NopPruner())[0])


def swapped(trial):
    """Return an estimator that the tree trains, or one that is fitted and errs less."""
    if trial.suggest_categorical("kind", ["pegasos", "tree"]) == "tree":
        depth = trial.suggest_int("max_depth", 2, 6)
        return DecisionTreeClassifier(max_depth=depth, random_state=0)
    return suggesting(trial)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("report", "pruner"),
    [
        ("auto", MedianPruner()),
        ("progressive", RacingPruner()),
        ("blocks", RacingPruner(futility=None)),
    ],
)
def test_a_later_trial_without_a_first_pass_goes_on_without_reports(report, pruner):
    y = (X**2).sum(axis=1) > 3  # so that the best trial is fitted
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), pruner=pruner)
    for kind in ("pegasos", "tree"):
        study.enqueue_trial({"kind": kind})
    objective = treecv_objective(swapped, X, y, cv=5, report=report)
    with pytest.warns(UserWarning, match="and similar trials are not pruned") as caught:
        study.optimize(objective, n_trials=12)
    said = [str(one.message) for one in caught if "are not pruned" in str(one.message)]
    made = "progressive" if report == "auto" else report
    assert len(said) == 1 and said[0].startswith(
        f"trial 1 and similar trials are not pruned, because report={made!r} needs "
    )
    assert study.best_trial.params["kind"] == "tree"
    # Trials that report are compared with the best of their own kind, also in a new process.
    study.optimize(treecv_objective(swapped, X, y, cv=5, report=made), n_trials=4)
    assert {trial.params["kind"] for trial in study.trials[-4:]} == {"pegasos", "tree"}
    for trial in study.trials:
        assert bool(trial.intermediate_values) == (trial.params["kind"] == "pegasos")
        if trial.params["kind"] == "tree":
            tree = DecisionTreeClassifier(max_depth=trial.params["max_depth"], random_state=0)
            assert trial.value == tree_cross_validate(tree, X, y, cv=5).mean


def test_reports_that_follow_from_the_pruner_do_not_turn_fits_into_passes():
    """Only ``report="progressive"`` asks for a single pass of ``SGDClassifier``."""

    def sgd(trial):
        return SGDClassifier(random_state=0) if trial.number else suggesting(trial)

    for report, method in (("auto", "fit"), ("progressive", "treecv")):
        objective = treecv_objective(sgd, X, Y, cv=5, report=report)
        study = optuna.create_study(pruner=MedianPruner())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study.optimize(objective, n_trials=2)
        assert [one.user_attrs["treecv"]["method"] for one in study.trials] == ["treecv", method]
        assert bool(study.trials[1].intermediate_values) == (method == "treecv")


@pytest.mark.parametrize("report", ["auto", "progressive", "blocks", "folds", "mean"])
def test_the_objectives_pruner_fits(report):
    pruner = objective_of(report=report).pruner()
    assert isinstance(pruner, RacingPruner)
    assert isinstance(objective_of().pruner(), NopPruner)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert reports_of(objective_of(report=report), pruner)[0]


MISFITS = [
    (MedianPruner(), "folds", "mean"),
    (HyperbandPruner(), "folds", "mean"),
    (SuccessiveHalvingPruner(), "folds", "mean"),
    (PatientPruner(PercentilePruner(25.0), 1), "blocks", "progressive"),
    (WilcoxonPruner(), "mean", "folds"),
    (WilcoxonPruner(), "progressive", "blocks"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("pruner", "report", "right"), MISFITS)
def test_a_pruner_that_does_not_fit_is_named_once(pruner, report, right):
    objective = objective_of(report=report)
    study = optuna.create_study(pruner=pruner)
    with pytest.warns(UserWarning, match="report=") as caught:
        study.optimize(objective, n_trials=3)
    (sentence,) = [str(one.message) for one in caught if f"report={report!r}" in str(one.message)]
    assert sentence.endswith(f"use pruner=objective.pruner() or report={right!r} instead.")


@pytest.mark.parametrize("report", ["folds", "mean", "progressive", "blocks"])
def test_pruners_that_fit_are_not_named(report):
    fitting = [RacingPruner(), NopPruner(), optuna.pruners.ThresholdPruner(upper=1.0)]
    fitting += [pruner for pruner, right in EARLY if right == report]
    for pruner in fitting:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            reports_of(objective_of(report=report), pruner)


def test_a_search_chooses_the_same_reports():
    search = TreeCVSearchCV(
        PegasosClassifier(), ALPHA, cv=5, n_trials=1, random_state=0, pruner=WilcoxonPruner()
    )
    search.fit(X, Y)
    assert search.study_.user_attrs["treecv_evaluation"]["report"] == "blocks"


class Slow(WilcoxonPruner):
    """Takes the time that the test's clock says."""

    def prune(self, study, trial):
        Slow.now += 2.0
        return False


def test_a_pruner_that_takes_longer_than_the_evaluations_is_named(monkeypatch):
    Slow.now = 0.0
    monkeypatch.setattr(study_check, "perf_counter", lambda: Slow.now)
    objective = objective_of(report="folds")
    study = optuna.create_study(pruner=Slow())
    with pytest.warns(UserWarning, match="WilcoxonPruner has taken") as caught:
        study.optimize(objective, n_trials=2)
    (sentence,) = [str(one.message) for one in caught]
    assert "WilcoxonPruner has taken 8.0 s so far, but the evaluations only 0." in sentence
    assert "n_startup_steps=14" in sentence


def test_a_pruner_that_takes_less_is_not_named(monkeypatch):
    check = study_check.StudyCheck(None, Space(None))
    monkeypatch.setattr(study_check, "perf_counter", lambda: Slow.now)
    Slow.now = 0.0
    study = optuna.create_study(pruner=Slow())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(3):
            trial = study.ask()
            check.should_prune(trial)
            check.pruner_time(trial, 2.5)
    assert np.isclose(Slow.now, 6.0)
