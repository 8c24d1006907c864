"""Figures of a study, for notebooks and the dashboard."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import math
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial

from optuna_treecv.core.intervals import PairedDifference
from optuna_treecv.core.settings import is_number
from optuna_treecv.reporting.evaluations import compare_trials
from optuna_treecv.reporting.evaluations import Compared
from optuna_treecv.reporting.evaluations import Evaluations
from optuna_treecv.reporting.evaluations import Frame
from optuna_treecv.reporting.evaluations import interval_in_words
from optuna_treecv.reporting.evaluations import number_of_trials
from optuna_treecv.reporting.evaluations import paired_differences
from optuna_treecv.reporting.evaluations import plus_minus
from optuna_treecv.study.records import facts_of_trial

try:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots
except ImportError as error:
    raise ImportError(
        "optuna_treecv.report needs plotly: pip install 'optuna-treecv[dashboard]'."
    ) from error

# Colors that color-blind readers can distinguish (Okabe & Ito).
BLUE, GREEN, ORANGE, GREY = "#0072B2", "#009E73", "#D55E00", "#8C8C8C"
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9")

#: The maximum number of panels in ``plot_parameters``: a dashboard card has room for 2 x 3.
MAX_PANELS = 6
#: If there are more folds, the distribution of fold scores is drawn as a curve.
MAX_POINTS = 1000
#: Values that are worse than this factor times the median are drawn at the edge of the figure.
FAR = 1e4
# The style of error bars of differences.
_WIDE_BARS = {"thickness": 1.5, "width": 4}
# The groups of trials that are drawn with error bars.
_WITH_BARS = ("complete", "pruned")
# The color scale of ``_plane`` covers this share of the trials. The worst trials share one color,
# because otherwise a few bad values would take up most of the scale.
_COLOR_SCALE_SHARE = 0.75


def plot_parameters(study: optuna.Study, store: Any = None) -> go.Figure:
    """Plot the values of trials against each hyperparameter.

    Parameters
    ----------
    study : optuna.Study
        A study of a ``treecv_objective``.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable, default=None
        The store of the study's objective; None to use the attributes of the trials.

    Returns
    -------
    plotly.graph_objects.Figure
        For two numerical hyperparameters, a scatter plot in which colors show the values; the
        worst quarter of the trials has a single color. Otherwise, one panel for each of the first
        six hyperparameters by name. An axis is logarithmic if the distribution is. Error bars show
        the standard error of the mean, std / sqrt(n_folds), which assumes independent folds.
        Pruned trials are drawn at the mean of the folds that they reached. Infinite and extremely
        bad values are drawn at the edge.

    Examples
    --------
    >>> import optuna
    >>> from optuna_treecv.report import plot_parameters
    >>> plot_parameters(optuna.create_study()).layout.annotations[0].text
    'The study has no finished trial yet.'
    """
    title = "Value against each hyper-parameter"
    evaluations = Evaluations(study, store)
    trials, frame = evaluations.trials, evaluations.frame
    names = sorted({name for number in frame["trial_number"] for name in trials[number].params})
    if not names:
        return _message(title, evaluations, "The study has no hyper-parameters.")
    means = frame["mean"]
    is_finite = np.isfinite(means)
    typical = abs(means[is_finite].median())
    # Infinite and extremely bad values are drawn at the edge, because otherwise all other values
    # would be squeezed together.
    is_far = ~is_finite | ((evaluations.sign * means > FAR * typical) & (typical > 0))
    are_numbers = all(
        isinstance(trial.distributions.get(name), IntDistribution | FloatDistribution)
        for trial in trials.values()
        for name in names
    )
    if len(names) == 2 and are_numbers:
        figure = _plane(evaluations, names, is_far)
        title = "Value against both hyper-parameters"
        subtitle = "the worst quarter of the complete trials has one colour"
        return _finish(figure, title, subtitle, evaluations)
    if len(names) > MAX_PANELS:
        title += f" (the first {MAX_PANELS} of {len(names)})"
        names = names[:MAX_PANELS]
    n_columns = min(len(names), 3)
    n_rows = math.ceil(len(names) / n_columns)
    figure = make_subplots(
        n_rows, n_columns, shared_yaxes="all", horizontal_spacing=0.04, vertical_spacing=0.24
    )
    edge, y_axis = _edge_and_axis(frame["mean"][~is_far].to_numpy(), evaluations.sign)
    labels = set()
    for i, name in enumerate(names):
        cell = {"row": i // n_columns + 1, "col": i % n_columns + 1}
        axis, to_label = _parameter_axis(name, trials, n_ticks=6 // n_columns)
        figure.update_xaxes(axis, **cell)
        for label, marker, group in _groups(evaluations, is_far):
            group = group[[name in trials[number].params for number in group["trial_number"]]]
            if group.empty:
                continue
            bars = {"array": group["standard_error"].to_numpy(), "thickness": 1, "width": 2}
            figure.add_scatter(
                x=[to_label(trials[number].params[name]) for number in group["trial_number"]],
                y=group["mean"].where(~is_far, edge).to_numpy(),
                **_hover(
                    group, f"{name} = %{{x}}", evaluations.metric, f" ({evaluations.how_sure})"
                ),
                error_y=bars if label in _WITH_BARS else None,
                mode="markers",
                marker=marker,
                name=label,
                legendgroup=label,
                showlegend=label not in labels,
                **cell,
            )
            labels.add(label)
    figure.update_yaxes(y_axis)
    figure.update_yaxes(title_text=evaluations.metric, col=1)
    return _finish(figure, title, f"bars: ± standard error, {evaluations.how_sure}", evaluations)


def plot_fold_scores(study: optuna.Study, store: Any, n_best: int = 5) -> go.Figure:
    """Plot the distribution of the fold scores of the best trials.

    Parameters
    ----------
    study : optuna.Study
        A study of a ``treecv_objective`` with this store.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable
        The store of the study's objective.
    n_best : int, default=5
        The number of trials to draw. Only complete trials with a finite value are drawn.

    Returns
    -------
    plotly.graph_objects.Figure
        Usually box plots. If 50 or more folds have at most 10 distinct scores, such as the errors
        0 and 1 of leave-one-out, the figure shows the mean difference from the best trial and its
        standard error. Trials often err on the same rows, so this standard error is much smaller
        than the standard errors of the means. Otherwise, if there are more than 1000 folds, the
        figure shows the cumulative distribution of the fold scores.

    Raises
    ------
    ValueError
        If ``n_best`` is invalid, or ``store`` is None.

    Examples
    --------
    >>> import optuna
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from optuna_treecv import treecv_objective
    >>> from optuna_treecv.report import plot_fold_scores
    >>> X, y = load_diabetes(return_X_y=True)
    >>> grid, store = {"alpha": [0.1, 1.0, 10.0]}, "sqlite:///treecv_store.db"
    >>> objective = treecv_objective(Ridge(), X, y, param_grid=grid, store=store)
    >>> study = optuna.create_study(sampler=objective.grid_sampler())
    >>> study.optimize(objective)
    >>> len(plot_fold_scores(study, store).data)
    3
    """
    n_best = number_of_trials("n_best", n_best)
    if store is None:
        raise ValueError(
            "store must be the store of the objective, which contains the fold scores, got None."
        )
    title = "Fold scores of the best trials"
    evaluations = Evaluations(study, store)
    best = evaluations.best(n_best)
    if best.empty:
        return _message(title, evaluations, "No finished trial has a finite value.")
    scores = evaluations.fold_scores(best)
    if not scores:
        return _message(title, evaluations, "The fold scores are not in the store.")
    at_values = np.unique(np.concatenate(list(scores.values())))
    n_folds = max(map(len, scores.values()))
    names = {
        row.trial_number: f"{row.trial_number}: {plus_minus(row.mean, row.standard_error)}"
        for row in best.itertuples()
    }
    # The number, the mean and the standard error are on separate lines, because cards are narrow.
    lines = {n: name.replace(": ", "<br>").replace(" ± ", "<br>± ") for n, name in names.items()}
    subtitle = "trial: mean ± standard error, std / √folds"
    if len(at_values) <= 10 and n_folds >= 50:
        title = "Differences to the best trial, fold by fold"
        differences = paired_differences(best, scores)
        if not differences:
            return _message(title, evaluations, "No second trial has the same folds.")
        figure = _draw_differences(differences, lines, next(iter(scores)), evaluations.metric)
        subtitle = "± standard error of the difference, std of the differences / √folds"
        if n_other := len(best) - 1 - len(differences):
            subtitle += f"; {n_other} of the best {len(best)} trials have other rows or folds"
    elif n_folds > MAX_POINTS:
        figure = _draw_quantiles(scores, names, at_values, evaluations.metric)
    else:
        figure = _draw_boxes(scores, lines, evaluations.metric)
        subtitle += "; dotted: the mean"
    return _finish(figure, title, subtitle, evaluations)


def plot_choice(
    study: optuna.Study, store: Any, simpler: Mapping[str, str] | None = None, n_best: int = 10
) -> go.Figure:
    """Plot the differences between the best trial and the next best ones, and the simplest choice.

    Parameters
    ----------
    study : optuna.Study
        A single-objective study of a ``treecv_objective``.
    store : str, sqlalchemy.URL, sqlalchemy.Engine, callable or TreeCVObjective
        The store, or the study's objective, which keeps the fold scores of the trials that it has
        evaluated.
    simpler : dict of str to {"larger", "smaller"}, default=None
        Which values of a parameter make a model simpler, see ``optuna_treecv.select``. If None,
        the simplest trial within one standard error is shown only if the single searched parameter
        has a usual direction, such as ``alpha``.
    n_best : int, default=10
        The number of trials, including the best one.

    Returns
    -------
    plotly.graph_objects.Figure
        The differences between the mean scores, with intervals at level 0.95. Differences are
        paired by folds, or by rows for an objective with ``row_losses=True``. Trials whose
        interval contains 0 cannot be distinguished from the best trial.

    Raises
    ------
    ValueError
        If an argument is invalid, or ``store`` is None.

    Examples
    --------
    >>> import optuna
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from optuna_treecv import treecv_objective
    >>> from optuna_treecv.report import plot_choice
    >>> X, y = load_diabetes(return_X_y=True)
    >>> objective = treecv_objective(Ridge(), X, y, param_grid={"alpha": [0.1, 1.0, 10.0]})
    >>> study = optuna.create_study(sampler=objective.grid_sampler())
    >>> study.optimize(objective)
    >>> [trace.name for trace in plot_choice(study, objective).data][0]
    'the best'
    """
    n_best = number_of_trials("n_best", n_best)
    if store is None:
        raise ValueError(
            "store must be either the store with the fold scores of the study or the objective of "
            "the study, got None."
        )
    title = "Differences to the best trial"
    evaluator = getattr(store, "evaluator", None)  # if the argument is a TreeCVObjective
    evaluations = Evaluations(study, store if evaluator is None else None)
    if len(study.directions) > 1:
        return _message(title, evaluations, "The study has several objectives.")
    if evaluations.best(1).empty:
        return _message(title, evaluations, "No finished trial has a finite value.")
    contest = evaluations.contest() if evaluator is None else evaluator.contest(study)
    compared = None if contest is None else compare_trials(contest, simpler, n_best)
    if contest is None or compared is None:
        text = "The scores of two or more folds are needed, but they are not available."
        return _message(title, evaluations, text)
    if not compared.next_best:
        return _message(title, evaluations, "No second trial has the same folds.")
    figure = _draw_choice(compared, contest.metric)
    subtitle = _choice_in_words(compared, contest.metric)
    if "baseline" in evaluations.facts:
        by = f"by always predicting {evaluations.facts['baseline_of']}"
        subtitle += f"<br>baseline: {evaluations.facts['baseline']:.4g} {by}"
    return _finish(figure, title, subtitle, evaluations)


def plot_trees(study: optuna.Study, store: Any = None) -> go.Figure:
    """Plot the mean fold score of the best trial against the number of trees.

    Parameters
    ----------
    study : optuna.Study
        A study of a ``treecv_objective`` with ``n_estimators="best"``.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable, default=None
        Ignored. The dashboard passes it to every figure.

    Returns
    -------
    plotly.graph_objects.Figure
        The mean over the folds with its standard error, and the chosen number of trees.

    Examples
    --------
    >>> import optuna
    >>> from optuna_treecv.report import plot_trees
    >>> plot_trees(optuna.create_study()).layout.annotations[0].text
    'The study has no finished trial yet.'
    """
    title, evaluations = "Score by the number of trees", Evaluations(study, store)
    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    has_best = bool(complete) and len(study.directions) == 1
    facts = facts_of_trial(study.best_trial.user_attrs) if has_best else {}
    if "curve" not in facts:
        return _message(
            title, evaluations, 'The best trial has no curve; use n_estimators="best".'
        )
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


# Drawing.


def _groups(
    evaluations: Evaluations, is_far: Any, edge: str = ", at the edge"
) -> Iterator[tuple[str, dict[str, Any], Frame]]:
    """Yield (label, marker, evaluations) for each group of trials with the same marker."""
    frame, complete = evaluations.frame, evaluations.frame["state"] == "complete"
    yield "pruned", {"color": GREY, "symbol": "circle-open"}, frame[~is_far & ~complete]
    yield "complete", {"color": BLUE}, frame[~is_far & complete]
    symbol = "triangle-up" if evaluations.sign > 0 else "triangle-down"
    far_marker = {"color": ORANGE, "symbol": symbol, "size": 9}
    yield f"infinite or far off{edge}", far_marker, frame[is_far]
    best = evaluations.best(1)
    ring = {"color": ORANGE, "symbol": "circle-open", "size": 13, "line_width": 2}
    yield f"best: trial {best['trial_number'].sum()}", ring, best


def _hover(group: Frame, at_values: str, metric: str, how_sure: str = "") -> dict[str, Any]:
    """Return the hover text of trials as arguments of Plotly."""
    return {
        "customdata": group[["trial_number", "mean", "standard_error", "folds_scored"]],
        "hovertemplate": f"trial %{{customdata[0]}}: {at_values}<br>{metric} "
        f"%{{customdata[1]:.4g}} ± %{{customdata[2]:.2g}}{how_sure}<br>"
        "%{customdata[3]:,} folds<extra></extra>",
    }


def _plane(evaluations: Evaluations, names: list[str], is_far: Any) -> go.Figure:
    """Return a scatter plot of the trials in the plane of two parameters.

    Complete trials are colored by their value.
    """
    figure = go.Figure()
    x, y = names
    for label, marker, group in _groups(evaluations, is_far, edge=""):
        if group.empty:
            continue
        points = [evaluations.trials[number].params for number in group["trial_number"]]
        if label == "complete":
            losses = evaluations.sign * group["mean"].to_numpy()
            ends = sorted(
                [
                    evaluations.sign * losses.min(),
                    evaluations.sign * np.quantile(losses, _COLOR_SCALE_SHARE),
                ]
            )
            marker = {
                "size": 9,
                "color": group["mean"].to_numpy(),
                "cmin": ends[0],
                "cmax": ends[1],
                "colorscale": "Cividis",  # the best trials have the brightest colors
                "reversescale": evaluations.sign > 0,
                "colorbar": {"title_text": evaluations.metric, "thickness": 12},
            }
        figure.add_scatter(
            x=[params[x] for params in points],
            y=[params[y] for params in points],
            **_hover(group, f"{x} = %{{x}}, {y} = %{{y}}", evaluations.metric),
            mode="markers",
            marker=marker,
            name=label,
        )
    x_axis, y_axis = (_parameter_axis(name, evaluations.trials, n_ticks=6)[0] for name in names)
    return figure.update_xaxes(x_axis).update_yaxes(y_axis)


def _edge_and_axis(at_values: np.ndarray, sign: int) -> tuple[float, dict[str, Any]]:
    """Return where to draw values at the edge, and the axis for the other values."""
    if not len(at_values):
        return 0.0, {"showticklabels": False}
    low, high = at_values.min(), at_values.max()
    if low > 0 and high > 100 * low:
        return float(high * 2 if sign > 0 else low / 2), _log_axis(at_values)
    margin = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return float(high + margin if sign > 0 else low - margin), {}


def _log_axis(at_values: Any, n_ticks: int = 6) -> dict[str, Any]:
    """Return the options of a logarithmic axis whose labels do not overlap."""
    at_values = [value for value in at_values if value > 0]
    decades = math.log10(max(at_values) / min(at_values)) if at_values else 0
    ticks = {"dtick": math.ceil(decades / n_ticks)} if decades > n_ticks / 2 else {}
    return {"type": "log", "exponentformat": "power", "tickangle": 0, **ticks}


def _parameter_axis(
    name: str, trials: Mapping[int, FrozenTrial], n_ticks: int
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return the axis of a hyperparameter, and a function that converts values to labels."""
    trials_with_it = [trial for trial in trials.values() if name in trial.params]
    distribution = trials_with_it[-1].distributions[name]
    if isinstance(distribution, CategoricalDistribution):
        choices: Any = distribution.choices
        to_label = _short if len({_short(choice) for choice in choices}) == len(choices) else str
        in_order = sorted(choices) if all(map(is_number, choices)) else choices
        order = [to_label(choice) for choice in in_order]
        axis: dict[str, Any] = {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": order,
            "range": [-0.5, len(order) - 0.5],
        }
        return axis | {"title_text": name}, to_label
    if getattr(distribution, "log", False):
        axis = _log_axis([trial.params[name] for trial in trials_with_it], n_ticks)
    else:
        axis = {"nticks": n_ticks + 1}
    return axis | {"title_text": name}, lambda value: value


def _short(choice: Any) -> str:
    return f"{choice:.3g}" if is_number(choice) else str(choice)


def _draw_boxes(scores: dict[int, np.ndarray], names: dict[int, str], metric: str) -> go.Figure:
    figure = go.Figure()
    for i, (number, score) in enumerate(scores.items()):
        figure.add_box(
            y=score,
            name=names[number],
            boxmean=True,
            boxpoints="all" if len(score) <= 100 else "outliers",
            jitter=0.4,
            marker={"color": COLOURS[i % len(COLOURS)], "size": 4},
            line_width=1,
            showlegend=False,
        )
    figure.update_xaxes(title_text="trial", tickangle=0)
    return figure.update_yaxes(title_text=f"{metric} of a fold")


def _draw_differences(
    differences: dict[int, PairedDifference], names: dict[int, str], best: int, metric: str
) -> go.Figure:
    ratios = [
        f"{abs(d.mean) / d.std_error:.1f} s.e." if d.std_error else "equal"
        for d in differences.values()
    ]
    figure = go.Figure()
    figure.add_hline(y=0, line={"color": GREY, "dash": "dot", "width": 1})
    figure.add_scatter(
        x=[names[best]],
        y=[0],
        mode="markers+text",
        text=["the best"],
        textposition="top right",
        marker={"color": ORANGE, "symbol": "circle-open", "size": 12, "line_width": 2},
        hoverinfo="skip",
        showlegend=False,
    )
    figure.add_scatter(
        x=[names[number] for number in differences],
        y=[d.mean for d in differences.values()],
        error_y=_WIDE_BARS | {"array": [d.std_error for d in differences.values()]},
        customdata=[(number, d.std_error) for number, d in differences.items()],
        hovertemplate=f"trial %{{customdata[0]}} minus trial {best}:<br>%{{y:.3g}} ± "
        "%{customdata[1]:.2g}, %{text}<extra></extra>",
        mode="markers+text",
        text=ratios,
        textposition="top right",
        marker={"color": BLUE, "size": 8},
        showlegend=False,
    )
    # Leave room for the text next to the last point.
    x_range = [-0.4, len(differences) + 0.7]
    figure.update_xaxes(type="category", title_text="trial", range=x_range, tickangle=0)
    return figure.update_yaxes(title_text=f"{metric} minus that of trial {best}")


def _choice_in_words(compared: Compared, metric: str) -> str:
    """Return a sentence on the best trial, its interval, and the simplest trial."""
    choice = compared.choice
    words = f"best: trial {choice.best.number}, {metric} {choice.best.values[0]:.4g}"
    if choice.interval is not None:
        words += f" ({interval_in_words(choice.interval)})"
    n_indistinguishable = len(choice.not_distinguishable)
    words += f"; {n_indistinguishable} of {choice.n_trials - 1} others not distinguishable"
    if compared.simplest is not None and compared.simplest is not choice.best:
        words += f"; the simplest within one standard error: trial {compared.simplest.number}"
    return words


def _draw_choice(compared: Compared, metric: str) -> go.Figure:
    """Draw the differences from the best trial with their intervals; the best trial is on top."""
    choice, figure = compared.choice, go.Figure()
    best = f"trial {choice.best.number}"
    figure.add_vline(x=0, line={"color": GREY, "dash": "dot", "width": 1})
    figure.add_scatter(
        x=[0],
        y=[best],
        mode="markers",
        name="the best",
        marker={"color": ORANGE, "size": 10},
        hovertext=f"{best}: {choice.best.params}",
        hoverinfo="text",
    )
    means = {choice.best.number: 0.0}
    for name, colour, is_indistinguishable in (
        ("not distinguishable", BLUE, True),
        ("worse", GREY, False),
    ):
        members = [
            (c.trial, c.difference)
            for c in compared.next_best
            if c.difference
            and (c.trial.number in choice.not_distinguishable) == is_indistinguishable
        ]
        if not members:
            continue
        means |= {trial.number: d.mean for trial, d in members}
        figure.add_scatter(
            x=[d.mean for _, d in members],
            y=[f"trial {trial.number}" for trial, _ in members],
            error_x=_WIDE_BARS | {"array": [d.interval.high - d.mean for _, d in members]},
            customdata=[(d.std_error, d.by, str(trial.params)) for trial, d in members],
            hovertemplate="%{y}: %{x:.3g} ± %{customdata[0]:.2g} by %{customdata[1]}<br>"
            "%{customdata[2]}<extra></extra>",
            mode="markers",
            name=name,
            marker={"color": colour, "size": 8},
        )
    simplest = compared.simplest
    if simplest is not None and simplest.number in means:
        figure.add_scatter(
            x=[means[simplest.number]],
            y=[f"trial {simplest.number}"],
            mode="markers",
            name="the simplest within one standard error",
            marker={"color": GREEN, "symbol": "circle-open", "size": 15, "line_width": 2},
            hoverinfo="skip",
        )
    order = [best, *(f"trial {c.trial.number}" for c in compared.next_best)][::-1]
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=order)
    axis = f"{metric} minus that of {best}, with its interval at level 0.95"
    return figure.update_xaxes(title_text=axis)


def _draw_quantiles(
    scores: dict[int, np.ndarray], names: dict[int, str], at_values: np.ndarray, metric: str
) -> go.Figure:
    figure = go.Figure()
    shares = np.linspace(0, 1, 401)
    for i, (number, score) in enumerate(scores.items()):
        figure.add_scatter(
            x=np.quantile(score, shares, method="inverted_cdf"),
            y=100 * shares,
            name=names[number],
            mode="lines",
            line={"color": COLOURS[i % len(COLOURS)], "width": 1.5},
            hovertemplate="%{y:.1f} % up to %{x:.4g}<extra>%{fullData.name}</extra>",
        )
    if at_values[0] > 0 and at_values[-1] > 100 * np.median(at_values):
        figure.update_xaxes(_log_axis(at_values[[len(at_values) // 100, -1]]))
    figure.update_xaxes(title_text=f"{metric} of a fold")
    return figure.update_yaxes(title_text="folds with at most this score, %")


def _finish(figure: go.Figure, title: str, subtitle: str, evaluations: Evaluations) -> go.Figure:
    """Set the title with the number of missing trials, the legend and the margins."""
    n_missing = len(evaluations.trials) - len(evaluations.frame)
    where = "have no known scores" if evaluations.store is None else "are not in the store"
    missing = (
        f"{n_missing} of {len(evaluations.trials)} finished trials {where}" if n_missing else ""
    )
    return finish(figure, title, *filter(None, (subtitle, missing)))


def finish(figure: go.Figure, title: str, *lines: str) -> go.Figure:
    """Set the title with small lines below it, the legend and the margins."""
    text = "<br>".join([title, *(f'<span style="font-size:12px">{line}</span>' for line in lines)])
    figure.update_layout(
        template="none",  # the default template would be most of the bytes of a small figure
        title={"text": text, "x": 0.02, "y": 0.93, "yanchor": "top", "font_size": 16},
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        margin={"l": 65, "r": 20, "t": 115, "b": 65},
    )
    figure.update_xaxes(zeroline=False, title_standoff=8)
    figure.update_yaxes(zeroline=False)
    return figure


def _message(title: str, evaluations: Evaluations, text: str = "") -> go.Figure:
    """Return a figure that shows only the reason why it is empty."""
    if not evaluations.trials:
        text = "The study has no finished trial yet."
    elif evaluations.frame.empty:
        where = (
            "was evaluated by a treecv_objective"
            if evaluations.store is None
            else "is in the store"
        )
        text = f"None of the {len(evaluations.trials)} finished trials {where}."
    figure = go.Figure()
    figure.add_annotation(text=text, showarrow=False, font_size=15, xref="paper", yref="paper")
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return _finish(figure, title, "", evaluations)


FIGURES: dict[str, Callable[..., go.Figure]] = {
    "parameters": plot_parameters,
    "choice": plot_choice,
    "fold-scores": plot_fold_scores,
    "trees": plot_trees,
}


def figures_of(evaluations: Evaluations) -> dict[str, go.Figure]:
    """Return the figures of a study by name; "trees" only if there is a learning curve."""
    has_curve = any(
        "curve" in facts_of_trial(trial.user_attrs) for trial in evaluations.trials.values()
    )
    names = [name for name in FIGURES if name != "trees" or has_curve]
    return {name: FIGURES[name](evaluations.study, evaluations.store) for name in names}
