"""Figures of a study and its store, for notebooks and the dashboard."""

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

# Colours that colour-blind readers can distinguish (Okabe & Ito).
BLUE, GREEN, ORANGE, GREY = "#0072B2", "#009E73", "#D55E00", "#8C8C8C"
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9")

#: Maximum number of panels of ``plot_parameters``: a dashboard card has room for 2 x 3.
MAX_PANELS = 6
#: With more folds than this, the distribution of fold scores is drawn as a curve.
MAX_POINTS = 1000
#: Values that exceed the median by more than this factor are drawn at the edge.
FAR = 1e4
# The error bars of differences.
_WIDE_BARS = {"thickness": 1.5, "width": 4}
# The groups of trials whose values have error bars.
_WITH_BARS = ("complete", "pruned")
# The share of trials that the colour scale of a plane covers: the worst ones share one colour,
# because a few bad values would take up most of the scale.
_SHARE = 0.75


def plot_parameters(study: optuna.Study, store: Any = None) -> go.Figure:
    """Plot the values of trials against each hyper-parameter.

    Parameters
    ----------
    study : optuna.Study
        A study of a ``treecv_objective``.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable, default=None
        The store of the study's objective; None: use the attributes of the trials.

    Returns
    -------
    plotly.graph_objects.Figure
        For two numerical hyper-parameters, a plane with the value as colour; the worst quarter of
        the trials has one colour. Otherwise one panel per hyper-parameter (the first six by name).
        An axis is logarithmic if the distribution is. Error bars are standard errors of the fold
        mean, std / sqrt(n_folds), as if folds were independent. Pruned trials are drawn at the
        mean of the folds that they reached. Infinite and extremely bad values are drawn at the
        edge.

    Examples
    --------
    >>> import optuna
    >>> from optuna_treecv.report import plot_parameters
    >>> plot_parameters(optuna.create_study()).layout.annotations[0].text
    'The study has no finished trial yet.'
    """
    title = "Value against each hyper-parameter"
    of = Evaluations(study, store)
    trials, frame = of.trials, of.frame
    names = sorted({name for number in frame["trial_number"] for name in trials[number].params})
    if not names:
        return _message(title, of, "The study has no hyper-parameters.")
    means = frame["mean"]
    is_finite = np.isfinite(means)
    usual = abs(means[is_finite].median())
    # Infinite and extremely bad values, which would squeeze the others together.
    away = ~is_finite | ((of.sign * means > FAR * usual) & (usual > 0))
    are_numbers = all(
        isinstance(trial.distributions.get(name), IntDistribution | FloatDistribution)
        for trial in trials.values()
        for name in names
    )
    if len(names) == 2 and are_numbers:
        figure = _plane(of, names, away)
        title = "Value against both hyper-parameters"
        subtitle = "the worst quarter of the complete trials has one colour"
        return _finish(figure, title, subtitle, of)
    if len(names) > MAX_PANELS:
        title += f" (the first {MAX_PANELS} of {len(names)})"
        names = names[:MAX_PANELS]
    n_columns = min(len(names), 3)
    n_rows = math.ceil(len(names) / n_columns)
    figure = make_subplots(
        n_rows, n_columns, shared_yaxes="all", horizontal_spacing=0.04, vertical_spacing=0.24
    )
    edge, y_axis = _edge_and_axis(frame["mean"][~away].to_numpy(), of.sign)
    labels = set()
    for i, name in enumerate(names):
        place = {"row": i // n_columns + 1, "col": i % n_columns + 1}
        axis, shown = _parameter_axis(name, trials, n_ticks=6 // n_columns)
        figure.update_xaxes(axis, **place)
        for label, marker, group in _groups(of, away):
            group = group[[name in trials[number].params for number in group["trial_number"]]]
            if group.empty:
                continue
            bars = {"array": group["standard_error"].to_numpy(), "thickness": 1, "width": 2}
            figure.add_scatter(
                x=[shown(trials[number].params[name]) for number in group["trial_number"]],
                y=group["mean"].where(~away, edge).to_numpy(),
                **_hover(group, f"{name} = %{{x}}", of.metric, f" ({of.how_sure})"),
                error_y=bars if label in _WITH_BARS else None,
                mode="markers",
                marker=marker,
                name=label,
                legendgroup=label,
                showlegend=label not in labels,
                **place,
            )
            labels.add(label)
    figure.update_yaxes(y_axis)
    figure.update_yaxes(title_text=of.metric, col=1)
    return _finish(figure, title, f"bars: ± standard error, {of.how_sure}", of)


def plot_fold_scores(study: optuna.Study, store: Any, n_best: int = 5) -> go.Figure:
    """Plot the distribution of the fold scores of the best trials.

    Parameters
    ----------
    study : optuna.Study
        A study of a ``treecv_objective`` with this store.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable
        The store of the study's objective.
    n_best : int, default=5
        The number of trials; only complete trials with a finite value are drawn.

    Returns
    -------
    plotly.graph_objects.Figure
        Usually box plots. If 50 or more folds have at most 10 distinct scores, such as the errors
        0 and 1 of leave-one-out, the mean difference to the best trial over the folds, with its
        standard error. Trials on the same folds make errors on the same rows, so this standard
        error is much smaller than those of their means. Otherwise, for more than 1000 folds, the
        cumulative distribution of fold scores.

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
            "store must be the store of the objective, which has the fold scores, got None."
        )
    title = "Fold scores of the best trials"
    of = Evaluations(study, store)
    best = of.best(n_best)
    if best.empty:
        return _message(title, of, "No finished trial has a finite value.")
    scores = of.fold_scores(best)
    if not scores:
        return _message(title, of, "The fold scores are not in the store.")
    values = np.unique(np.concatenate(list(scores.values())))
    n_folds = max(map(len, scores.values()))
    names = {
        row.trial_number: f"{row.trial_number}: {plus_minus(row.mean, row.standard_error)}"
        for row in best.itertuples()
    }
    # The number, the mean and the standard error on separate lines, for a narrow card.
    lines = {n: name.replace(": ", "<br>").replace(" ± ", "<br>± ") for n, name in names.items()}
    subtitle = "trial: mean ± standard error, std / √folds"
    if len(values) <= 10 and n_folds >= 50:
        title = "Differences to the best trial, fold by fold"
        differences = paired_differences(best, scores)
        if not differences:
            return _message(title, of, "No second trial has the same folds.")
        figure = _draw_differences(differences, lines, next(iter(scores)), of.metric)
        subtitle = "± standard error of the difference, std of the differences / √folds"
        if n_other := len(best) - 1 - len(differences):
            subtitle += f"; {n_other} of the best {len(best)} trials have other rows or folds"
    elif n_folds > MAX_POINTS:
        figure = _draw_quantiles(scores, names, values, of.metric)
    else:
        figure = _draw_boxes(scores, lines, of.metric)
        subtitle += "; dotted: the mean"
    return _finish(figure, title, subtitle, of)


def plot_choice(
    study: optuna.Study, store: Any, simpler: Mapping[str, str] | None = None, n_best: int = 10
) -> go.Figure:
    """Plot the differences of the next best trials from the best one, and which one to choose.

    Parameters
    ----------
    study : optuna.Study
        A study of a ``treecv_objective``, with one objective.
    store : str, sqlalchemy.URL, sqlalchemy.Engine, callable or TreeCVObjective
        The store, or the study's objective, which has the fold scores of the trials that it has
        evaluated itself.
    simpler : dict of str to {"larger", "smaller"}, default=None
        Which values of a parameter make a simpler model, for the choice by one standard error, see
        ``optuna_treecv.select``. None is enough for a single searched parameter with a known
        direction, such as ``alpha``; otherwise no such choice is shown.
    n_best : int, default=10
        The number of trials, the best one included.

    Returns
    -------
    plotly.graph_objects.Figure
        The differences of means, paired by folds, with their intervals at level 0.95; paired by
        rows for an objective with ``row_losses=True``. Trials whose interval contains 0 cannot be
        distinguished from the best one.

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
            "store must be the store that has the study's fold scores, or the study's objective, "
            "got None."
        )
    title = "Differences to the best trial"
    evaluator = getattr(store, "evaluator", None)  # of a TreeCVObjective
    of = Evaluations(study, store if evaluator is None else None)
    if len(study.directions) > 1:
        return _message(title, of, "The study has several objectives.")
    if of.best(1).empty:
        return _message(title, of, "No finished trial has a finite value.")
    contest = of.contest() if evaluator is None else evaluator.contest(study)
    compared = None if contest is None else compare_trials(contest, simpler, n_best)
    if contest is None or compared is None:
        text = "The scores of two or more folds are needed, but are not available."
        return _message(title, of, text)
    if not compared.next_best:
        return _message(title, of, "No second trial has the same folds.")
    figure = _draw_choice(compared, contest.metric)
    subtitle = _choice_in_words(compared, contest.metric)
    if "baseline" in of.facts:
        by = f"by always predicting {of.facts['baseline_of']}"
        subtitle += f"<br>baseline: {of.facts['baseline']:.4g} {by}"
    return _finish(figure, title, subtitle, of)


def plot_trees(study: optuna.Study, store: Any = None) -> go.Figure:
    """Plot the mean fold score of the best trial against the number of trees.

    Parameters
    ----------
    study : optuna.Study
        A study of a ``treecv_objective`` with ``n_estimators="best"``.
    store : str, sqlalchemy.URL, sqlalchemy.Engine or callable, default=None
        Ignored; every figure takes it, for the dashboard.

    Returns
    -------
    plotly.graph_objects.Figure
        The mean with its standard error over folds, and the chosen number of trees.

    Examples
    --------
    >>> import optuna
    >>> from optuna_treecv.report import plot_trees
    >>> plot_trees(optuna.create_study()).layout.annotations[0].text
    'The study has no finished trial yet.'
    """
    title, of = "Score by the number of trees", Evaluations(study, store)
    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    has_best = bool(complete) and len(study.directions) == 1
    facts = facts_of_trial(study.best_trial.user_attrs) if has_best else {}
    if "curve" not in facts:
        return _message(title, of, 'The best trial has no curve; use n_estimators="best".')
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
    of: Evaluations, away: Any, edge: str = ", at the edge"
) -> Iterator[tuple[str, dict[str, Any], Frame]]:
    """Yield (label, marker, evaluations) for each group of trials with the same marker."""
    frame, complete = of.frame, of.frame["state"] == "complete"
    yield "pruned", {"color": GREY, "symbol": "circle-open"}, frame[~away & ~complete]
    yield "complete", {"color": BLUE}, frame[~away & complete]
    pointing = "triangle-up" if of.sign > 0 else "triangle-down"
    off = {"color": ORANGE, "symbol": pointing, "size": 9}
    yield f"infinite or far off{edge}", off, frame[away]
    best = of.best(1)
    ring = {"color": ORANGE, "symbol": "circle-open", "size": 13, "line_width": 2}
    yield f"best: trial {best['trial_number'].sum()}", ring, best


def _hover(group: Frame, at: str, metric: str, how_sure: str = "") -> dict[str, Any]:
    """Return the hover text of trials as arguments of Plotly."""
    return {
        "customdata": group[["trial_number", "mean", "standard_error", "folds_scored"]],
        "hovertemplate": f"trial %{{customdata[0]}}: {at}<br>{metric} %{{customdata[1]:.4g}} ± "
        f"%{{customdata[2]:.2g}}{how_sure}<br>%{{customdata[3]:,}} folds<extra></extra>",
    }


def _plane(of: Evaluations, names: list[str], away: Any) -> go.Figure:
    """Return a scatter plot of the trials in the plane of two parameters.

    Complete trials are coloured by their value.
    """
    figure = go.Figure()
    x, y = names
    for label, marker, group in _groups(of, away, edge=""):
        if group.empty:
            continue
        points = [of.trials[number].params for number in group["trial_number"]]
        if label == "complete":
            losses = of.sign * group["mean"].to_numpy()
            ends = sorted([of.sign * losses.min(), of.sign * np.quantile(losses, _SHARE)])
            marker = {
                "size": 9,
                "color": group["mean"].to_numpy(),
                "cmin": ends[0],
                "cmax": ends[1],
                "colorscale": "Cividis",  # the best trials are brightest
                "reversescale": of.sign > 0,
                "colorbar": {"title_text": of.metric, "thickness": 12},
            }
        figure.add_scatter(
            x=[params[x] for params in points],
            y=[params[y] for params in points],
            **_hover(group, f"{x} = %{{x}}, {y} = %{{y}}", of.metric),
            mode="markers",
            marker=marker,
            name=label,
        )
    x_axis, y_axis = (_parameter_axis(name, of.trials, n_ticks=6)[0] for name in names)
    return figure.update_xaxes(x_axis).update_yaxes(y_axis)


def _edge_and_axis(values: np.ndarray, sign: int) -> tuple[float, dict[str, Any]]:
    """Return the position of values at the edge, and the axis of the other values."""
    if not len(values):
        return 0.0, {"showticklabels": False}
    low, high = values.min(), values.max()
    if low > 0 and high > 100 * low:
        return float(high * 2 if sign > 0 else low / 2), _log_axis(values)
    room = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return float(high + room if sign > 0 else low - room), {}


def _log_axis(values: Any, n_ticks: int = 6) -> dict[str, Any]:
    """Return a logarithmic axis whose labels do not overlap."""
    values = [value for value in values if value > 0]
    decades = math.log10(max(values) / min(values)) if values else 0
    ticks = {"dtick": math.ceil(decades / n_ticks)} if decades > n_ticks / 2 else {}
    return {"type": "log", "exponentformat": "power", "tickangle": 0, **ticks}


def _parameter_axis(
    name: str, trials: Mapping[int, FrozenTrial], n_ticks: int
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return the axis of a hyper-parameter, and the function from its values to labels."""
    trials_with_it = [trial for trial in trials.values() if name in trial.params]
    distribution = trials_with_it[-1].distributions[name]
    if isinstance(distribution, CategoricalDistribution):
        choices: Any = distribution.choices
        shown = _short if len({_short(choice) for choice in choices}) == len(choices) else str
        in_order = sorted(choices) if all(map(is_number, choices)) else choices
        order = [shown(choice) for choice in in_order]
        axis: dict[str, Any] = {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": order,
            "range": [-0.5, len(order) - 0.5],
        }
        return axis | {"title_text": name}, shown
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
    # The text next to the last point needs room.
    shown = [-0.4, len(differences) + 0.7]
    figure.update_xaxes(type="category", title_text="trial", range=shown, tickangle=0)
    return figure.update_yaxes(title_text=f"{metric} minus that of trial {best}")


def _choice_in_words(compared: Compared, metric: str) -> str:
    """Return the best trial with its interval, and the simplest one, in words."""
    choice = compared.choice
    words = f"best: trial {choice.best.number}, {metric} {choice.best.values[0]:.4g}"
    if choice.interval is not None:
        words += f" ({interval_in_words(choice.interval)})"
    n_alike = len(choice.not_distinguishable)
    words += f"; {n_alike} of {choice.n_trials - 1} others not distinguishable"
    if compared.simplest is not None and compared.simplest is not choice.best:
        words += f"; the simplest within one standard error: trial {compared.simplest.number}"
    return words


def _draw_choice(compared: Compared, metric: str) -> go.Figure:
    """Draw the differences to the best trial with intervals, the best trial at the top."""
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
    for name, colour, are_alike in (("not distinguishable", BLUE, True), ("worse", GREY, False)):
        members = [
            (c.trial, c.difference)
            for c in compared.next_best
            if c.difference and (c.trial.number in choice.not_distinguishable) == are_alike
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
    scores: dict[int, np.ndarray], names: dict[int, str], values: np.ndarray, metric: str
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
    if values[0] > 0 and values[-1] > 100 * np.median(values):
        figure.update_xaxes(_log_axis(values[[len(values) // 100, -1]]))
    figure.update_xaxes(title_text=f"{metric} of a fold")
    return figure.update_yaxes(title_text="folds with at most this score, %")


def _finish(figure: go.Figure, title: str, subtitle: str, of: Evaluations) -> go.Figure:
    """Set title, legend and margins; the title includes the number of missing trials."""
    n_missing = len(of.trials) - len(of.frame)
    where = "have no attributes" if of.store is None else "are not in the store"
    missing = f"{n_missing} of {len(of.trials)} finished trials {where}" if n_missing else ""
    return finish(figure, title, *filter(None, (subtitle, missing)))


def finish(figure: go.Figure, title: str, *lines: str) -> go.Figure:
    """Set the title with small lines below it, the legend and the margins."""
    text = "<br>".join([title, *(f'<span style="font-size:12px">{line}</span>' for line in lines)])
    figure.update_layout(
        template="none",  # the default template makes up most of the bytes of a small figure
        title={"text": text, "x": 0.02, "y": 0.93, "yanchor": "top", "font_size": 16},
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        margin={"l": 65, "r": 20, "t": 115, "b": 65},
    )
    figure.update_xaxes(zeroline=False, title_standoff=8)
    figure.update_yaxes(zeroline=False)
    return figure


def _message(title: str, of: Evaluations, text: str = "") -> go.Figure:
    """Return an empty figure with the reason why it is empty."""
    if not of.trials:
        text = "The study has no finished trial yet."
    elif of.frame.empty:
        where = "was evaluated by a treecv_objective" if of.store is None else "is in the store"
        text = f"None of the {len(of.trials)} finished trials {where}."
    figure = go.Figure()
    figure.add_annotation(text=text, showarrow=False, font_size=15, xref="paper", yref="paper")
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return _finish(figure, title, "", of)


FIGURES: dict[str, Callable[..., go.Figure]] = {
    "parameters": plot_parameters,
    "choice": plot_choice,
    "fold-scores": plot_fold_scores,
    "trees": plot_trees,
}


def figures_of(of: Evaluations) -> dict[str, go.Figure]:
    """Return the figures of a study by name; without a learning curve there is no "trees"."""
    has_curve = any("curve" in facts_of_trial(trial.user_attrs) for trial in of.trials.values())
    names = [name for name in FIGURES if name != "trees" or has_curve]
    return {name: FIGURES[name](of.study, of.store) for name in names}
