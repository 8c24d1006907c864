"""Several scores in one training, and which of them are optimised."""

from __future__ import annotations

from ids import said
import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna_dashboard import get_note
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import f1_score
from sklearn.metrics import make_scorer
from sklearn.model_selection import TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import ModelCache
from optuna_treecv import PegasosClassifier
from optuna_treecv import pooled
from optuna_treecv import tree_cross_validate
from optuna_treecv import tree_cross_validate_many
from optuna_treecv import treecv_objective
from optuna_treecv.dashboard import publish
from optuna_treecv.history import forget
from optuna_treecv.history import load_evaluations
from optuna_treecv.history import load_fold_scores
from optuna_treecv.report import plot_choice
from optuna_treecv.report import plot_fold_scores
from optuna_treecv.report import plot_parameters
from optuna_treecv.reporting.cli import main

ALPHA = {"alpha": FloatDistribution(1e-4, 1e1, log=True)}
# For what does not depend on the kind of the database.
on_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
SCORES = ["error", "roc_auc", "hinge", "f1_macro"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:scoring=.* mean over rows"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning"),
]


def coefficient_size(estimator, X, y):
    return float(np.abs(estimator.coef_).sum())


@pytest.fixture
def data(make_data):
    return make_data(160, 5)


LEARNERS = {
    "compiled": (AveragedSGDClassifier(loss="log_loss"), {}),
    "adapter": (SGDClassifier(random_state=0), {}),
    "standard": (PegasosClassifier(alpha=0.1), {"method": "standard"}),
    "chain": (PegasosClassifier(alpha=0.1), {"cv": TimeSeriesSplit(4), "method": "treecv"}),
    "holdout": (PegasosClassifier(alpha=0.1), {"method": "holdout"}),
    "fit": (LogisticRegression(), {"method": "fit"}),
    "repeats": (PegasosClassifier(alpha=0.1), {"n_repeats": 3}),
    "threads": (PegasosClassifier(alpha=0.1), {"n_jobs": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_together_scores_are_what_they_are_alone(data, learner):
    X, y = data
    estimator, options = LEARNERS[learner]
    options = {"cv": 5} | options
    scoring = [*SCORES, coefficient_size, make_scorer(f1_score)]
    scoring += [pooled("roc_auc"), pooled("error")]
    together = tree_cross_validate(estimator, X, y, scoring=scoring, **options)
    names = [*SCORES, "coefficient_size", "scorer", "pooled_roc_auc", "pooled_error"]
    assert list(together.scores) == names
    for one, name in zip(scoring, names, strict=True):
        alone = tree_cross_validate(estimator, X, y, scoring=one, **options)
        (score,) = alone.scores.values()
        found = together.scores[name]
        np.testing.assert_array_equal(found.test_score, score.test_score)
        assert (found.mean, found.std, found.std_error) == (score.mean, score.std, score.std_error)
        assert found.direction == score.direction
        assert alone.n_updates == together.n_updates  # one training for all
        assert (alone.mean, alone.std) == (score.mean, score.std)
    assert together.mean == together.scores["error"].mean


def test_a_dict_gives_names(data):
    X, y = data
    scoring = {"AUC": "roc_auc", "size": coefficient_size, "other": lambda *_: 3.0}
    result = tree_cross_validate(PegasosClassifier(), X, y, cv=4, scoring=scoring)
    assert list(result.scores) == ["AUC", "size", "other"]
    assert result.scores["other"].mean == 3
    assert result.mean == result.scores["AUC"].mean


@pytest.mark.slow
def test_side_by_side_and_from_the_cache(data):
    X, y = data
    models = [PegasosClassifier(alpha=alpha) for alpha in (0.01, 0.1, 1, 10)]
    scoring = ["error", "roc_auc", "f1_macro"]
    for model, found in zip(
        models, tree_cross_validate_many(models, X, y, cv=6, scoring=scoring), strict=True
    ):
        alone = tree_cross_validate(model, X, y, cv=6, scoring=scoring)
        assert all(found.scores[n].mean == alone.scores[n].mean for n in scoring)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (["error"], ["error", "roc_auc", "f1_macro"]),
        (["error", "f1_macro"], ["f1_macro"]),
        (["f1_macro", "matthews_corrcoef"], ["f1_macro", "matthews_corrcoef"]),
        (["f1_macro"], ["f1_macro", "error"]),
        (["f1_macro"], ["f1_macro", coefficient_size]),
        ([pooled("f1")], ["error"]),
    ],
)
def test_one_scoring_uses_what_another_has_kept(data, first, then):
    X, y = data
    cache = ModelCache()

    def evaluate(scoring, cache):
        objective = treecv_objective(
            PegasosClassifier(), X, y, param_distributions=ALPHA, scoring=scoring, cache=cache
        )
        return objective.evaluate({"alpha": 0.1})

    assert evaluate(first, cache).n_updates > 0
    again, anew = evaluate(then, cache), evaluate(then, None)
    assert again.n_updates == 0
    for name, score in anew.scores.items():
        np.testing.assert_array_equal(again.scores[name].test_score, score.test_score)
    third = evaluate(then, cache)
    assert all(third.scores[n].mean == anew.scores[n].mean for n in anew.scores)


def test_a_scorer_of_ones_own_is_no_other_of_the_same_name(data):
    """Scores kept under a scorer's name in scikit-learn are not those of a function."""
    X, y = data
    scoring = {"theirs": "f1_macro", "own": lambda *_: 7.0}
    scoring["own"].__name__ = "f1_macro"
    objective = treecv_objective(
        GaussianNB(),
        X,
        y,
        param_distributions={"var_smoothing": FloatDistribution(1e-9, 1e-8)},
        scoring=scoring,
        method="treecv",
    )
    for _ in range(2):
        result = objective.evaluate({"var_smoothing": 1e-9})
        assert result.scores["own"].mean == 7 != result.scores["theirs"].mean


@on_sqlite
def test_fits_keep_all_scores_of_a_fold(data, store_url):
    X, y = data
    store = store_url
    scoring = ["error", "roc_auc", pooled("roc_auc"), pooled("neg_log_loss")]
    options = {"param_distributions": {"C": FloatDistribution(0.1, 1)}, "cv": 4, "store": store}

    def evaluate():
        objective = treecv_objective(LogisticRegression(), X, y, scoring=scoring, **options)
        return objective.evaluate({"C": 0.5})

    first, second = evaluate(), evaluate()
    assert first.n_updates > 0 == second.n_updates
    for name, score in first.scores.items():
        assert second.scores[name].mean == score.mean
        assert second.scores[name].std_error == score.std_error


def test_fits_tell_apart_scores_of_which_the_first_is_the_same(data):
    X, y = data
    cache, space = ModelCache(), {"C": FloatDistribution(0.1, 1)}
    for second in ("roc_auc", "f1_macro", "balanced_accuracy"):
        scoring = ["error", second]
        options = {"param_distributions": space, "cv": 4, "scoring": scoring}
        found = [
            treecv_objective(LogisticRegression(), X, y, cache=one, **options).evaluate({"C": 0.5})
            for one in (cache, None)
        ]
        assert found[0].scores[second].mean == found[1].scores[second].mean


def test_a_diverged_fold_is_the_worst_by_every_score(data):
    X, y = data
    wild = AveragedSGDClassifier(step_size=1e300, average=False)
    result = tree_cross_validate(wild, X * 1e200, y, cv=4, scoring=["error", "hinge", "roc_auc"])
    assert result.diverged_folds == 4
    assert [score.mean for score in result.scores.values()] == [1, np.inf, -np.inf]
    both = [pooled("error"), pooled("hinge"), pooled("roc_auc"), pooled("f1_macro")]
    result = tree_cross_validate(wild, X * 1e200, y, cv=4, scoring=both)
    assert result.diverged_folds == 4
    assert [score.mean for score in result.scores.values()] == [1, np.inf, -np.inf, -np.inf]


# In a study.


def objective_of(data, **options):
    X, y = data
    options = {"param_distributions": ALPHA, "cv": 5, "scoring": SCORES} | options
    return treecv_objective(PegasosClassifier(), X, y, **options)


def test_the_first_score_is_optimised_unless_another_is_named(data):
    expected = objective_of(data).evaluate({"alpha": 0.1})
    for optimize, name in [(None, "error"), ("roc_auc", "roc_auc"), ("f1_macro", "f1_macro")]:
        objective = objective_of(data, optimize=optimize)
        assert objective.direction == ("minimize" if name == "error" else "maximize")
        assert objective.directions == [objective.direction]
        study = optuna.create_study(direction=objective.direction)
        study.enqueue_trial({"alpha": 0.1})
        study.optimize(objective, n_trials=1)
        (trial,) = study.trials
        assert trial.value == expected.scores[name].mean
        assert objective.evaluate({"alpha": 0.1}).mean == trial.value
        known = trial.user_attrs["treecv"]
        assert [key for key in known if key.startswith("score_")] == [f"score_{n}" for n in SCORES]
        for n in SCORES:
            assert known[f"score_{n}"] == pytest.approx(expected.scores[n].mean, rel=1e-5)
        assert known["mean_test_score"] == known[f"score_{name}"]
        assert trial.user_attrs["treecv"]["std_test_score"] == pytest.approx(
            expected.scores[name].std, rel=1e-5
        )
        assert list(trial.user_attrs) == ["treecv"]


@pytest.mark.slow
@on_sqlite
def test_a_study_of_several_objectives(data, store_url):
    store = store_url
    objective = objective_of(data, optimize=["roc_auc", "error"], store=store)
    assert objective.directions == ["maximize", "minimize"]
    with pytest.raises(AttributeError, match=r"has 2 values; use"):
        _ = objective.direction
    study = optuna.create_study(directions=objective.directions)
    study.optimize(objective, n_trials=5)
    for trial in study.trials:
        scores = objective.evaluate(trial.params).scores
        assert trial.values == [scores["roc_auc"].mean, scores["error"].mean]
        assert list(trial.user_attrs) == ["treecv"]
    frame = load_evaluations(store, study=study)
    assert len(frame) == 5 * len(SCORES) and frame["run"].is_unique
    for trial in study.trials:
        rows = frame[frame["trial_number"] == trial.number].set_index("scoring")
        scores = objective.evaluate(trial.params).scores
        assert {name: rows.loc[name, "mean"] for name in SCORES} == {
            name: score.mean for name, score in scores.items()
        }
        assert rows.loc["roc_auc", "run"] == trial.user_attrs["treecv"]["run"]
        assert (rows["direction"] == ["maximize", "minimize", *["maximize"] * 2]).sum() >= 2
        assert rows["n_updates"].drop("roc_auc").eq(0).all()  # so that sums are right
    assert frame["n_updates"].sum() == sum(
        t.user_attrs["treecv"]["n_updates"] for t in study.trials
    )
    folds = load_fold_scores(store, study=study)
    means = folds.groupby("run", observed=True)["score"].mean()
    np.testing.assert_allclose(means[frame["run"]], frame["mean"], rtol=1e-12)
    with pytest.raises(ValueError, match="study must have a single objective"):
        objective.best_estimator(study)
    fitted = objective.best_estimator(study.best_trials[0])
    assert fitted.alpha == study.best_trials[0].params["alpha"]


@on_sqlite
def test_several_scores_of_a_trial_are_one_evaluation(data, store_url, capsys):
    store = store_url
    study = optuna.create_study(study_name="several")
    study.optimize(objective_of(data, store=store), n_trials=3)
    assert main(["store", store]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["several", "3", "0"]
    assert forget(store, keep_runs=[study.trials[1].user_attrs["treecv"]["run"]]) == 2 * len(
        SCORES
    )
    frame = load_evaluations(store)
    assert set(frame["trial_number"]) == {1} and list(frame["scoring"]) == SCORES
    assert len(load_evaluations(store, study=study)) == len(SCORES)


@pytest.mark.slow
@pytest.mark.parametrize("scoring", [["error", "roc_auc"], pooled("roc_auc")], ids=said)
def test_a_trial_of_the_store_can_be_shown(data, tmp_path, scoring):
    store = f"sqlite:///{tmp_path}/store.db"
    objective = objective_of(data, scoring=scoring, store=store)
    study = optuna.create_study(direction=objective.direction)
    study.optimize(objective, n_trials=3)
    publish(study, store)
    note = get_note(study)
    assert f"## Best: trial {study.best_trial.number}, " in note and "nan" not in note
    assert "roc_auc" in note and " ± " in note
    for shown in (note, plot_parameters(study).layout.title.text):
        assert ("jackknife" in shown) == (objective.directions == ["maximize"])


@pytest.mark.slow
def test_the_note_lists_the_front(data, tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"
    objective = objective_of(data, optimize=["error", "roc_auc"], store=store)
    study = optuna.create_study(directions=objective.directions)
    study.optimize(objective, n_trials=10)
    publish(study, store)
    note = get_note(study)
    front = [trial.number for trial in study.best_trials]
    part = note.partition("## Pareto front")[2].partition("No trial is better")[0]
    rows = [line.split("|")[1:3] for line in part.splitlines() if line.startswith("| ")][2:]
    assert sorted(int(number.strip("&emsp; ")) for number, _ in rows) == sorted(front)
    assert "error, minimize; roc_auc, maximize" in note
    best = study.trials[int(note.partition("best_estimator(study.trials[")[2].partition("]")[0])]
    assert best.number in front
    assert best.values[0] == min(trial.values[0] for trial in study.trials)
    for plot in (plot_choice, plot_parameters, plot_fold_scores):
        plot(study, store)


def test_trials_are_pruned_by_the_optimised_score(data):
    objective = objective_of(data, optimize="roc_auc", report="folds", cv=8)
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.NopPruner())
    study.enqueue_trial({"alpha": 0.1})
    study.optimize(objective, n_trials=1)
    expected = objective.evaluate({"alpha": 0.1}).scores["roc_auc"]
    (trial,) = study.trials
    reported = list(trial.intermediate_values.values())
    np.testing.assert_allclose(np.mean(reported), expected.mean, rtol=1e-12)


def test_a_pruned_trial_has_no_pooled_score(data, tmp_path):
    class Always(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return True

    objective = objective_of(
        data,
        scoring=["error", pooled("roc_auc")],
        report="mean",
        store=f"sqlite:///{tmp_path}/store.db",
    )
    study = optuna.create_study(pruner=Always())
    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert np.isnan(trial.user_attrs["treecv"]["score_pooled_roc_auc"])


# Wrong arguments.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scoring": ["error", "error"]}, "scoring must have distinct names"),
        ({"scoring": {"a": "f1", "b": "f1"}}, "scoring must contain each score only once"),
        ({"scoring": {"error", "roc_auc"}}, "several of these in a list or dict"),
        ({"scoring": []}, "scoring must be a list with at least one score"),
        ({"scoring": {1: "error"}}, "scoring must be a list with at least one score"),
        ({"scoring": ["error", None]}, "scoring must be None, a loss name"),
        ({"scoring": ["error", "roc_ac"]}, "did you mean 'roc_auc'"),
        ({"scoring": ["error", "squared_error"]}, "scoring='squared_error' is not for a class"),
        ({"scoring": ["error", "neg_log_loss"]}, "scoring='neg_log_loss' needs an estimator"),
        ({"optimize": "f1"}, r"optimize must be one of the names in scoring \(error, roc_auc"),
        ({"optimize": ["error", "error"]}, "optimize must be one of the names in scoring"),
        ({"optimize": []}, "optimize must be one of the names in scoring"),
        ({"optimize": 3}, "optimize must be one of the names in scoring"),
        ({"scoring": None, "optimize": "error"}, "optimize must be None if scoring is None"),
        (
            {"optimize": ["error", "roc_auc"], "report": "folds"},
            "report must be None if optimize is a list, because Optuna cannot prune",
        ),
        ({"pooled": True, "report": "mean"}, "report must be None if the optimised score is"),
        (
            {"scoring": pooled("error"), "report": "mean"},
            "report must be None if the optimised score is",
        ),
        ({"pooled": 1.5}, "pooled must be"),
        ({"scoring": coefficient_size, "pooled": True}, "a loss or a scorer made by make_scorer"),
    ],
)
def test_wrong_arguments_are_named(data, options, says):
    with pytest.raises(ValueError, match=says):
        objective_of(data, **options)


@pytest.mark.parametrize(
    ("optimize", "directions", "says"),
    [
        (["error", "roc_auc"], ["minimize"], r"directions must be \['minimize', 'maximize'\]"),
        (["error", "roc_auc"], ["minimize", "minimize"], r"directions must be \['minimize'"),
        ("error", ["minimize", "maximize"], "must have a single direction"),
        ("roc_auc", ["minimize"], "direction must be 'maximize'"),
        (["error"], ["maximize"], "direction must be 'minimize'"),
    ],
)
def test_a_study_with_other_directions_is_refused(data, optimize, directions, says):
    study = optuna.create_study(directions=directions)
    with pytest.raises(ValueError, match=says):
        study.optimize(objective_of(data, optimize=optimize), n_trials=1)


def test_another_optimised_score_is_another_evaluation(data):
    """Its values cannot be compared with those before."""
    study = optuna.create_study(direction="maximize")
    study.optimize(objective_of(data, optimize="roc_auc"), n_trials=1)
    with pytest.warns(UserWarning, match="other data, weights, folds or scoring"):
        study.optimize(objective_of(data, optimize="f1_macro"), n_trials=1)
