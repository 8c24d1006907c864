"""Run scikit-learn's searches and cross-validations with the engines of this package.

``python -m optuna_treecv.accelerate script.py`` runs a script in which ``GridSearchCV``,
``RandomizedSearchCV``, ``cross_val_score``, ``cross_validate``, ``cross_val_predict``,
``permutation_test_score``, ``learning_curve``, ``validation_curve``, ``LassoCV``,
``ElasticNetCV``, ``LogisticRegressionCV``, ``SequentialFeatureSelector``, ``RFE``, ``RFECV``, and
``RidgeCV`` and ``RidgeClassifierCV`` with ``cv`` use an engine of this package if it gives the
scores of the estimator's own fits; everything else runs as before. At the end it prints a report
of all calls. With ``--check``, scikit-learn also runs each call, and the report gives the largest
difference of a score. Iterative solvers of scikit-learn stop before they have converged, so their
scores, and hence the best parameters, may differ slightly.

In a notebook, call ``install`` before the first import from scikit-learn.
"""

from argparse import ArgumentParser
from argparse import RawDescriptionHelpFormatter
from argparse import REMAINDER
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
import runpy
import sys
from typing import Any

from sklearn import calibration
from sklearn import feature_selection
from sklearn import linear_model
from sklearn import model_selection
from sklearn.ensemble import _stacking
from sklearn.feature_selection import _sequential
from sklearn.linear_model import _ridge
from sklearn.model_selection import _plot

from optuna_treecv.search import curves
from optuna_treecv.search import selectors
from optuna_treecv.search import stand_ins
from optuna_treecv.search.stand_ins import Call
from optuna_treecv.search.stand_ins import RECORD

__all__ = ["install", "report", "uninstall"]

_IN_MODEL_SELECTION = (
    "GridSearchCV",
    "RandomizedSearchCV",
    "cross_val_predict",
    "cross_val_score",
    "cross_validate",
)
_CURVES = ("learning_curve", "permutation_test_score", "validation_curve")
_IN_FEATURE_SELECTION = ("RFE", "RFECV", "SequentialFeatureSelector")
# The modules and names that are replaced, and the modules of their replacements. RidgeCV and
# RidgeClassifierCV use the last one if ``cv`` is given.
_REPLACED: list[tuple[Any, str, Any]] = [
    *((model_selection, name, stand_ins) for name in _IN_MODEL_SELECTION),
    *((model_selection, name, curves) for name in _CURVES),
    *((feature_selection, name, selectors) for name in _IN_FEATURE_SELECTION),
    (linear_model, "ElasticNetCV", stand_ins),
    (linear_model, "LassoCV", stand_ins),
    (linear_model, "LogisticRegressionCV", stand_ins),
    # Names by which other modules of scikit-learn call them.
    (_plot, "learning_curve", curves),
    (_plot, "validation_curve", curves),
    (_ridge, "GridSearchCV", stand_ins),
    (_sequential, "cross_val_score", stand_ins),
    (_stacking, "cross_val_predict", stand_ins),
    (calibration, "cross_val_predict", stand_ins),
]

_EXAMPLES = """\
examples:
  python -m optuna_treecv.accelerate train.py --rows 10000
      run train.py with its arguments, and list the calls that were replaced
  python -m optuna_treecv.accelerate --check train.py
      also compare the scores and times with those of scikit-learn
"""


def install(*, check: bool = False) -> None:
    """Replace scikit-learn's searches and cross-validations by those of this package.

    Names that were imported from scikit-learn before this call are not replaced.

    Parameters
    ----------
    check : bool, default=False
        Whether scikit-learn also runs each call. ``report`` then shows the largest difference
        between scores, and both durations.

    Examples
    --------
    >>> from optuna_treecv import accelerate
    >>> accelerate.install(check=True)
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.model_selection import GridSearchCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> search = GridSearchCV(Ridge(), {"alpha": [0.01, 0.1, 1.0]}).fit(X, y)
    >>> search.best_params_
    {'alpha': 0.01}
    >>> accelerate.report().splitlines()[0]
    'By optuna_treecv:'
    >>> accelerate.uninstall()
    """
    RECORD.is_checked = check
    RECORD.calls.clear()
    for module, name, ours in _REPLACED:
        setattr(module, name, getattr(ours, name))


def uninstall() -> None:
    """Restore scikit-learn's searches and cross-validations."""
    for module, name, ours in _REPLACED:
        stand_in: Any = getattr(ours, name)
        setattr(module, name, getattr(stand_in, "stands_for", None) or stand_in.__wrapped__)


def report() -> str:
    """Return a report of the calls since ``install``, with the reasons for each fallback.

    Only the last 10,000 calls are recorded.

    Returns
    -------
    str
        The report, with one line for each kind of call.
    """
    accelerated = [call for call in RECORD.calls if call.method]
    not_accelerated = [call for call in RECORD.calls if not call.method]
    lines = ["By optuna_treecv:", *_lines(accelerated)] if accelerated else []
    lines += ["By scikit-learn, as before:", *_lines(not_accelerated)] if not_accelerated else []
    return "\n".join(lines or ["No search and no cross-validation was called."])


def _lines(calls: Iterable[Call]) -> Iterable[str]:
    def kind(call: Call) -> tuple[str, ...]:
        return call.name, call.estimator, call.method, call.reason

    for (name, estimator, method, reason), group in groupby(sorted(calls, key=kind), kind):
        same_calls = list(group)
        times = f", {len(same_calls)} times" if len(same_calls) > 1 else ""
        duration = f"{sum(call.seconds for call in same_calls):.3g} s"
        seconds_before = [
            call.seconds_before for call in same_calls if call.seconds_before is not None
        ]
        if seconds_before:
            duration += f" (scikit-learn: {sum(seconds_before):.3g} s"
            difference = max(call.difference for call in same_calls if call.difference is not None)
            duration += f"; largest difference of a score: {difference:.1e})"
        explanation = f"method={method!r}" if method else f"because {reason}"
        remarks = "".join(f"; {call.remark}" for call in same_calls if call.remark)
        yield f"  {name} of {estimator}{times}: {duration}, {explanation}{remarks}"


def make_parser() -> ArgumentParser:
    """Create the parser of the command line."""
    parser = ArgumentParser(
        prog="python -m optuna_treecv.accelerate",
        description="Run a script with the searches and cross-validations of optuna_treecv in "
        "place of scikit-learn's, if they give the scores of converged fits.",
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="also run each call with scikit-learn, and compare the scores",
    )
    parser.add_argument("script", help="the Python file to run")
    parser.add_argument("arguments", nargs=REMAINDER, help="the arguments of the script")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    script = Path(options.script)
    if not script.is_file():
        parser.error(f"script must be a Python file, got {options.script!r}.")
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(script.resolve().parent)
    install(check=options.check)
    try:
        runpy.run_path(options.script, run_name="__main__")
    finally:
        uninstall()
        print(report(), file=sys.stderr)


if __name__ == "__main__":
    main()
