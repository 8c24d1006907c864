"""The figure of a study's values in the plane of two hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial
import plotly.graph_objects as go

from optuna_treecv.reporting.evaluated import Frame

# The share of trials that the colours tell apart: the worst ones share one colour, since a few bad
# values would take most of a scale.
_SHARE = 0.75


def plane_of(
    axes: Mapping[str, Mapping[str, Any]],
    groups: Iterable[tuple[str, Mapping[str, Any], Frame]],
    trials: Mapping[int, FrozenTrial],
    metric: str,
    sign: int,
) -> go.Figure:
    """Return a figure with a point for each trial, the complete ones coloured by their value.

    Parameters
    ----------
    axes : dict of str to dict
        The axes of the two parameters by their names.
    groups : iterable of (str, dict, Frame)
        The label, the marker and the evaluations of each group; the complete trials are those of
        "complete".
    trials : dict of int to FrozenTrial
    metric : str
    sign : int
        What makes smaller values better.
    """
    figure = go.Figure()
    (x, x_axis), (y, y_axis) = axes.items()
    for label, marker, group in groups:
        if group.empty:
            continue
        own = [trials[number].params for number in group["trial_number"]]
        if label == "complete":
            marker = {"size": 9} | _colours(group["mean"].to_numpy(), metric, sign)
        figure.add_scatter(
            x=[params[x] for params in own],
            y=[params[y] for params in own],
            customdata=group[["trial_number", "mean", "standard_error", "folds_scored"]],
            hovertemplate=f"trial %{{customdata[0]}}: {x} = %{{x}}, {y} = %{{y}}<br>{metric} "
            "%{customdata[1]:.4g} ± %{customdata[2]:.2g}<br>%{customdata[3]:,} folds"
            "<extra></extra>",
            mode="markers",
            marker=marker,
            name=label,
        )
    return figure.update_xaxes(x_axis).update_yaxes(y_axis)


def _colours(values: np.ndarray, metric: str, sign: int) -> dict[str, Any]:
    """Return the colours of values, the brightest for the best."""
    best = sign * np.min(sign * values)
    worst = sign * np.quantile(sign * values, _SHARE)
    return {
        "color": values,
        "cmin": min(best, worst),
        "cmax": max(best, worst),
        "colorscale": "Cividis",
        "reversescale": sign > 0,
        "colorbar": {"title_text": metric, "thickness": 12},
    }
