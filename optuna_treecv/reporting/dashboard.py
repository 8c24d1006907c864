"""Publishes the note and the figures of a study in optuna-dashboard."""

from typing import Any
import warnings

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState

from optuna_treecv.reporting.evaluations import Evaluations
from optuna_treecv.reporting.evaluations import number_of_trials
from optuna_treecv.reporting.figures import figures_of
from optuna_treecv.reporting.note import note_of
from optuna_treecv.reporting.note import plain
from optuna_treecv.study.records import PROGRESS_ATTRIBUTE

try:
    from optuna_dashboard import get_note
    from optuna_dashboard import save_note
    from optuna_dashboard import save_plotly_graph_object
except ImportError as error:
    raise ImportError(
        "optuna_treecv.dashboard needs optuna-dashboard: pip install 'optuna-treecv[dashboard]'."
    ) from error

# Marks around the published part of the note. They are link definitions, which the dashboard does
# not display.
BEGIN, END = '[treecv]: # "begin"', '[treecv]: # "end"'


def publish(study: optuna.Study, store: Any) -> None:
    """Publish the note and the figures of a study in optuna-dashboard.

    The note describes the best trials, the data and settings, the score of a constant prediction,
    and the cost. Publishing again replaces the note and the figures, but keeps your own text above
    or below the published part of the note.

    Publish again after a study has been renamed in the dashboard, because renaming deletes its
    figures. Also publish again if two workers have published at the same time, because figures are
    stored in pieces, which may have been mixed.

    Parameters
    ----------
    study : optuna.Study
        A study of a ``treecv_objective`` with this store.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable
        The store of the study's objective.

    See Also
    --------
    DashboardCallback : Publishes a study after every N trials.
    optuna_treecv.report : The same figures for notebooks.

    Examples
    --------
    >>> import optuna
    >>> from optuna_dashboard import get_note
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from optuna_treecv import treecv_objective
    >>> from optuna_treecv.dashboard import publish
    >>> X, y = load_diabetes(return_X_y=True)
    >>> grid, store = {"alpha": [0.1, 1.0, 10.0]}, "sqlite:///treecv_store.db"
    >>> objective = treecv_objective(Ridge(), X, y, param_grid=grid, store=store)
    >>> study = optuna.create_study(sampler=objective.grid_sampler())
    >>> study.optimize(objective)
    >>> publish(study, store)
    >>> f"Best: trial {study.best_trial.number}" in get_note(study)
    True
    """
    evaluations = Evaluations(study, store)
    before, _, rest = get_note(study).partition(BEGIN)  # the user's text around it stays
    _, _, after = rest.partition(f"\n{END}")  # names in the published part have no line breaks
    sections = (
        before.strip(),
        f"{BEGIN}\n\n{_describe_running_trials(study)}{note_of(evaluations)}\n\n{END}",
        after.strip(),
    )
    save_note(study, "\n\n".join(filter(None, sections)))
    for name, figure in figures_of(evaluations).items():
        save_plotly_graph_object(study, figure, graph_object_id=f"treecv-{name}")


class DashboardCallback:
    """Callback of ``study.optimize`` that publishes the study after every N trials.

    If publishing fails, a warning is emitted, and the study continues.

    Parameters
    ----------
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable
        The store of the study's objective.
    every : int, default=20
        The number of trials between two publications.

    Raises
    ------
    ValueError
        If ``every`` is not an integer of at least 1.

    See Also
    --------
    publish : Publishes a study once, for example at the end.

    Examples
    --------
    >>> import optuna
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from optuna_treecv import treecv_objective
    >>> from optuna_treecv.dashboard import DashboardCallback
    >>> X, y = load_diabetes(return_X_y=True)
    >>> grid, store = {"alpha": [0.1, 1.0, 10.0]}, "sqlite:///treecv_store.db"
    >>> objective = treecv_objective(Ridge(), X, y, param_grid=grid, store=store)
    >>> study = optuna.create_study(sampler=objective.grid_sampler())
    >>> study.optimize(objective, callbacks=[DashboardCallback(store, every=2)])
    """

    def __init__(self, store: Any, every: int = 20) -> None:
        self._store = store
        self._every = number_of_trials("every", every)

    def __call__(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Publish the study if the trial is an N-th one.

        Parameters
        ----------
        study : optuna.Study
            The study.
        trial : optuna.trial.FrozenTrial
            The trial that has just finished.
        """
        if (trial.number + 1) % self._every:
            return
        try:
            publish(study, self._store)
        except Exception as error:
            warnings.warn(
                f"the study continues, but could not be published after trial {trial.number}: "
                f"{error}",
                stacklevel=2,
            )


def _describe_running_trials(study: optuna.Study) -> str:
    """Return the progress of running trials, which is recorded if their rows are on disk."""
    running = study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
    lines = [
        f"Trial {trial.number}: {plain(trial.user_attrs[PROGRESS_ATTRIBUTE])}.\n\n"
        for trial in running
        if PROGRESS_ATTRIBUTE in trial.user_attrs
    ]
    return "".join(lines)
