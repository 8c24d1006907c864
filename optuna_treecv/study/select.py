"""Selects a trial of a study by what its objective, or its store, knows of all folds."""

from __future__ import annotations

import optuna

from optuna_treecv.study.choice import Choice
from optuna_treecv.study.choice import Rule
from optuna_treecv.study.choice import Simpler
from optuna_treecv.study.objective import TreeCVObjective


def select(
    study: optuna.Study,
    objective: TreeCVObjective,
    rule: Rule = "best",
    simpler: Simpler | None = None,
    level: float = 0.95,
) -> Choice:
    """Choose a trial of a study, with the comparisons that defend the choice.

    All trials of an objective have the same folds, so they are compared in pairs. The standard
    error of a paired difference is often a quarter of that of a mean: on Covertype by
    leave-one-out 0.00014, where that of the mean is 0.00056.

    Parameters
    ----------
    study : optuna.Study
        A study with one objective and at least one complete trial.
    objective : TreeCVObjective
        The objective that the study was run with. It knows the fold scores of the trials that it
        has evaluated itself, up to 64 MiB of the best ones; those of other trials are read from
        its store. With ``row_losses=True`` it compares its trials over rows.
    rule : {"best", "one_se"} or callable, default="best"
        "best" takes the best value. "one_se" takes the simplest of the trials whose paired
        difference from the best one is at most its standard error. A callable gets a list of
        candidates, the best one first, each with its ``trial`` and its ``difference`` from the
        best one, and returns one of them.
    simpler : dict of str to {"larger", "smaller"}, "n_updates" or callable, default=None
        For "one_se": which values of a parameter make a simpler model, the most important
        parameter first. It may be left out where a single parameter is searched whose name says
        it, such as ``alpha``. Trials of several families have no such parameter: "n_updates"
        takes the one that was trained on the fewest rows, and a callable, (params) -> float, that
        for whose parameters it returns the smallest number.
    level : float, default=0.95
        The probability with which intervals cover.

    Returns
    -------
    Choice
        The chosen trial, its interval, and how others differ from the best one.

    Raises
    ------
    ValueError
        If an argument is wrong, if the study has another evaluation than the objective, or if the
        fold scores of the best trial are not known.

    See Also
    --------
    TreeCVObjective.best_estimator : Fits the chosen model.
    optuna_treecv.report.plot_choice : Draws the comparisons.

    Examples
    --------
    >>> import optuna
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from optuna_treecv import PegasosClassifier, select, treecv_objective
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> grid = {"alpha": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}
    >>> objective = treecv_objective(PegasosClassifier(), scale(X), y, param_grid=grid, cv="loo")
    >>> study = optuna.create_study(sampler=objective.grid_sampler())
    >>> study.optimize(objective)
    >>> choice = select(study, objective, rule="one_se")
    >>> choice.trial.params["alpha"] >= choice.best.params["alpha"]
    True
    """
    if not isinstance(objective, TreeCVObjective):
        raise ValueError(f"objective must be one of treecv_objective, got {objective!r}.")
    return objective._choose(study, rule, simpler, level)
