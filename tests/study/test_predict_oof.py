"""Out-of-fold predictions of a study's trials."""

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import treecv_objective


def study_of(objective, n_trials=3):
    study = optuna.create_study(direction=objective.direction)
    study.optimize(objective, n_trials=n_trials)
    return study


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_fits_predict_as_scikit_learn_does(binary, method):
    folds = KFold(5, shuffle=True, random_state=3)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    space = {"logisticregression__C": FloatDistribution(1e-2, 1e2, log=True)}
    objective = treecv_objective(
        pipeline, *binary, param_distributions=space, cv=folds, method="fit"
    )
    study = study_of(objective)
    expected = cross_val_predict(
        pipeline.set_params(**study.best_params), *binary, cv=folds, method=method
    )
    np.testing.assert_allclose(objective.predict_oof(study, method=method), expected, rtol=1e-10)


def test_exact_folds_predict_as_scikit_learn_does(regression):
    folds = KFold(4)
    space = {"alpha": FloatDistribution(1e-2, 1e2, log=True)}
    objective = treecv_objective(Ridge(), *regression, param_distributions=space, cv=folds)
    study = study_of(objective)
    for trial in study.trials:
        expected = cross_val_predict(Ridge(**trial.params), *regression, cv=folds)
        np.testing.assert_allclose(objective.predict_oof(trial), expected, rtol=1e-9)


@pytest.mark.parametrize("cv", ["loo", 7])
@pytest.mark.parametrize("average", [False, True])
def test_they_are_the_predictions_that_were_scored(binary, cv, average):
    X, y = binary
    space = {"alpha": FloatDistribution(1e-4, 1e2, log=True)}
    objective = treecv_objective(
        PegasosClassifier(average=average), X, y, param_distributions=space, cv=cv, pooled=True
    )
    study = study_of(objective)
    for trial in study.trials:
        predicted = objective.predict_oof(trial)
        assert np.mean(predicted != y) == pytest.approx(trial.value, abs=1e-12)
        model = PegasosClassifier(average=average, **trial.params)
        np.testing.assert_array_equal(predicted, tree_cross_val_predict(model, X, y, cv=cv))


def test_bad_input(binary):
    space = {"alpha": FloatDistribution(1e-4, 1e2, log=True)}
    objective = treecv_objective(PegasosClassifier(), *binary, param_distributions=space, cv=4)
    study = study_of(objective, n_trials=1)
    with pytest.raises(ValueError, match=r"^method must be one of 'predict', .*, got 'classes'"):
        objective.predict_oof(study, method="classes")
    with pytest.raises(ValueError, match="method='predict_proba'"):
        objective.predict_oof(study, method="predict_proba")
    with pytest.raises(ValueError, match="study must be an optuna.Study or one of its trials"):
        objective.predict_oof({"alpha": 1.0})
    twice = treecv_objective(
        PegasosClassifier(), *binary, param_distributions=space, cv=4, n_repeats=2
    )
    with pytest.raises(ValueError, match="n_repeats must be 1"):
        twice.predict_oof(study)
