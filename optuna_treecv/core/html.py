"""HTML displays of results for notebooks: a table, and a strip plot of fold scores."""

from collections.abc import Mapping
from html import escape

import numpy as np

from optuna_treecv.types import Array

# The maximum number of ticks. For more folds, this number of quantiles is drawn instead.
_MAX_TICKS = 200
_WIDTH, _HEIGHT = 480, 28


def html_table(title: str, rows: Mapping[str, object], above: str = "") -> str:
    """Return an HTML table of names and values below a title.

    Values that are None or "" are omitted.

    ``above`` is HTML that is inserted between the title and the table.
    """
    cells = "".join(
        f"<tr><th style='text-align: left'>{escape(name)}</th>"
        f"<td style='text-align: left'>{escape(str(value))}</td></tr>"
        for name, value in rows.items()
        if value is not None and str(value)
    )
    return f"<div><strong>{escape(title)}</strong>{above}<table>{cells}</table></div>"


def svg_strip(scores: Array, mean: float, error: float | None) -> str:
    """Return an SVG strip plot of fold scores, with their mean and its standard error.

    Parameters
    ----------
    scores : ndarray of shape (n_scores,)
    mean : float
    error : float or None
        The standard error of the mean, drawn as a band around it.
    """
    finite = np.sort(scores[np.isfinite(scores)])
    if len(finite) < 2 or not np.isfinite(mean) or not 0 < finite[-1] - finite[0] < np.inf:
        return ""
    if len(finite) > _MAX_TICKS:
        finite = np.quantile(finite, np.linspace(0, 1, _MAX_TICKS))
    low, high = finite[0], finite[-1]

    def to_x(value: float) -> float:
        return float(np.clip(8 + (_WIDTH - 16) * (value - low) / (high - low), 1, _WIDTH - 1))

    ticks = "".join(f"M{to_x(score):.1f} 6V{_HEIGHT - 6}" for score in finite)
    band = ""
    if error is not None and np.isfinite(error):
        left, right = to_x(mean - error), to_x(mean + error)
        band = (
            f"<rect x='{left:.1f}' y='2' width='{right - left:.1f}' height='{_HEIGHT - 4}' "
            "fill='#0072B2' opacity='0.2'/>"
        )
    return (
        f"<br><svg role='img' width='{_WIDTH}' height='{_HEIGHT}' style='max-width: 100%' "
        f"viewBox='0 0 {_WIDTH} {_HEIGHT}'>"
        f"<title>Scores of folds from {low:.4g} to {high:.4g}, mean {mean:.4g}</title>{band}"
        f"<path d='{ticks}' stroke='#8C8C8C' opacity='0.6'/>"
        f"<path d='M{to_x(mean):.1f} 2V{_HEIGHT - 2}' stroke='#0072B2' stroke-width='3'/></svg>"
    )
