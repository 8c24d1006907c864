"""Contests between trials with chosen fold scores."""

import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.trial import create_trial

from optuna_treecv.study.choice import Contest


def contest(folds, params=None, stds=True):
    """Return a contest between trials with these fold scores, which are minimised."""
    trials = []
    for number, scores in enumerate(folds):
        candidate = {"alpha": 1.0 + number} if params is None else params[number]
        distributions = {
            name: FloatDistribution(0, 1e9)
            if isinstance(value, float)
            else CategoricalDistribution([value])
            for name, value in candidate.items()
        }
        trials.append(
            create_trial(
                value=float(np.mean(scores)),
                params=candidate,
                distributions=distributions,
                user_attrs={"treecv": {"std_test_score": np.std(scores)}} if stds else {},
            )
        )
        trials[-1].number = number
    scores = dict(enumerate(map(np.asarray, folds)))
    return Contest(
        trials=sorted(trials, key=lambda trial: trial.value),
        folds_of=lambda asked: {trial.number: scores[trial.number] for trial in asked},
        rows={},
        shares=None,
        metric="error",
        n_folds=len(folds[0]),
        n_trained=90,
        test_share=1 / (len(folds[0]) - 1),
        score_range=None,
    )
