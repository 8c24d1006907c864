"""The scores of ensembles by their number of trees, drawn."""

import numpy as np
import optuna
import plotly.graph_objects as go

from optuna_treecv.reporting.evaluations import Evaluations
from optuna_treecv.reporting.figures import BLUE
from optuna_treecv.reporting.figures import finish
from optuna_treecv.reporting.figures import GREEN
from optuna_treecv.reporting.figures import message
from optuna_treecv.study.attributes import facts_of_trial


def plot_trees(study: optuna.Study, store: object = None) -> go.Figure:
    """Plot the mean score of the folds by the number of trees, of the best trial.

    Parameters
    ----------
    study : optuna.Study
        A study of a ``treecv_objective`` with ``n_estimators="best"``.
    store : str, URL, Engine, callable or Database, default=None
        Not needed; for the dashboard, which gives it to all figures.

    Returns
    -------
    plotly.graph_objects.Figure
        The mean with its standard error over folds, and the number of trees that was taken.

    Examples
    --------
    >>> import optuna
    >>> from optuna_treecv.report import plot_trees
    >>> figure = plot_trees(optuna.create_study())
    >>> figure.layout.annotations[0].text
    'The study has no finished trial yet.'
    """
    title, of = "Score by the number of trees", Evaluations(study, store)
    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    has_best = bool(complete) and len(study.directions) == 1
    facts = facts_of_trial(study.best_trial.user_attrs) if has_best else {}
    if "curve" not in facts:
        return message(title, of, 'The best trial has no curve: see n_estimators="best".')
    n_trees, mean, error = (np.array(part, dtype=float) for part in facts["curve"])
    figure = go.Figure()
    for bound, fill in ((mean - error, None), (mean + error, "tonexty")):
        figure.add_scatter(
            x=n_trees,
            y=bound,
            mode="lines",
            line={"width": 0, "color": BLUE},
            fill=fill,
            showlegend=False,
            hoverinfo="skip",
        )
    figure.add_scatter(
        x=n_trees,
        y=mean,
        mode="lines",
        line={"color": BLUE},
        name="mean of the folds, with its standard error",
        hovertemplate="%{x} trees: %{y:.6g}<extra></extra>",
    )
    best = facts["n_estimators"]
    figure.add_vline(best, line={"color": GREEN, "dash": "dash"})
    figure.update_xaxes(title_text="trees")
    figure.update_yaxes(title_text="mean score of the folds")
    number, value = study.best_trial.number, study.best_value
    return finish(figure, title, f"trial {number}: {value:.6g} with {best} trees")
