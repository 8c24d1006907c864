"""
Single-pass learners against the optimum
========================================

The upper panel shows well-specified least squares: 20 features, eigenvalues 0.1 to 1, unit noise.
It plots rows times excess risk, divided by the constant of the empirical risk minimiser (d / 2).
In theory this ratio is b / (b - 1) for streaming SVRG whose batches grow by b. It is 1 for the
factorial schedule of streaming SVRG and for averaged SGD. Streaming SVRG is evaluated at the ends
of its stages.

The lower panels show the 10-fold error on Covertype (class 1 against the rest), computed by
TreeCV. It is plotted against the step size; for PEGASOS, whose steps are 1 / (alpha t), against
alpha. scikit-learn downloads the data once (11 MB) or finds it in ``$SCIKIT_LEARN_DATA``. If it
can do neither, a table of 20,000 rows takes the place of Covertype.

::

    python -m pip install '.[docs]' && python examples/single_pass.py [seeds] [rows] [figure.svg]
"""

from collections import defaultdict
import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import fetch_covtype
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.model_selection import KFold

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import AveragedSGDRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_validate

seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
n_rows = int(float(sys.argv[2])) if len(sys.argv) > 2 else 1_000_000
figure_file = sys.argv[3] if len(sys.argv) > 3 else "single_pass.svg"

D = 20
EIGENVALUES = np.linspace(0.1, 1, D)
PLAIN = {"alpha": 0.0, "fit_intercept": False, "shuffle": False}
SVRG = {"initial_batch_size": 1000, "inner_steps": 4000, "step_size": 0.005, **PLAIN}
REGRESSORS = {
    "streaming SVRG, b = 2 (theory 2)": StreamingSVRGRegressor(**SVRG),
    "streaming SVRG, b = 4 (theory 1.33)": StreamingSVRGRegressor(**SVRG | {"batch_growth": 4.0}),
    "streaming SVRG, factorial (theory 1)": StreamingSVRGRegressor(
        **SVRG | {"schedule": "factorial", "inner_steps": 1000, "step_size": 0.01}
    ),
    "averaged SGD (theory 1)": AveragedSGDRegressor(step_size=0.005, average=True, **PLAIN),
}


def ratios(model, X, y, truth):
    """Return pairs (rows, rows x excess risk / (d / 2)), at stage ends or at powers of two."""
    found = {}
    pieces = range(500, len(X) + 1, 500)
    if not isinstance(model, StreamingSVRGRegressor):
        pieces = [1000 * 2**i for i in range(20) if 1000 * 2**i < len(X)] + [len(X)]
    begin = 0
    for end in pieces:
        model.partial_fit(X[begin:end], y[begin:end])
        begin = end
        used = getattr(model, "n_rows_used_", end)
        in_first_batch = used == 0
        in_inner_phase = isinstance(model, StreamingSVRGRegressor) and used == end
        if not in_first_batch and not in_inner_phase:
            excess = 0.5 * np.sum(EIGENVALUES * (model.coef_ - truth) ** 2)
            found[used] = used * excess / (D / 2)
    return sorted(found.items())


def least_squares():
    """Return the mean curve of each learner: (rows, ratio, standard error) per point."""
    curves = defaultdict(list)
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n_rows, D)) * np.sqrt(EIGENVALUES)
        truth = rng.normal(size=D) / np.sqrt(D)
        y = X @ truth + rng.normal(size=n_rows)
        for name, model in REGRESSORS.items():
            if isinstance(model, StreamingSVRGRegressor):
                model.set_params(random_state=seed)
            curves[name].append(ratios(model.__class__(**model.get_params()), X, y, truth))
    means = {}
    for name, runs in curves.items():
        length = min(map(len, runs))
        points = np.array([run[:length] for run in runs])
        spread = points[:, :, 1].std(axis=0) / np.sqrt(len(runs))
        means[name] = np.column_stack([points.mean(axis=0), spread])
    return means


def covertype():
    """Return standardised rows, whether they are of class 1, and a name."""
    name = "Covertype"
    try:
        X, y = fetch_covtype(return_X_y=True)
    except OSError:
        print("There is no Covertype and no way to download it: a made table takes its place.")
        name = "made table"
        X, y = make_classification(20_000, 54, n_informative=20, flip_y=0.4, random_state=0)
    return (X - X.mean(axis=0)) / X.std(axis=0), y == 1, name


def main():
    matplotlib.rcParams["svg.hashsalt"] = "optuna_treecv"  # equal numbers give an equal file
    figure, panels = plt.subplot_mosaic(
        [["rates", "rates"], ["steps", "alphas"]], figsize=(8, 7.5), layout="constrained"
    )
    axes = list(panels.values())
    curves = least_squares()
    print(f"N x excess risk / (d / 2) at the last point before N = {n_rows:,}, {seeds} seeds")
    for name, points in curves.items():
        n, ratio, error = points[-1]
        print(f"    {name:38} N = {n:9,.0f}   {ratio:5.2f} +- {error:.2f}")
        axes[0].errorbar(points[:, 0], points[:, 1], points[:, 2], marker=".", label=name)
    axes[0].axhline(1, color="grey", lw=1)
    axes[0].axhline(2, color="grey", lw=1, ls=":")
    axes[0].set(xscale="log", xlabel="rows N", ylabel="N · excess risk / (d / 2)", ylim=(0, 8))
    axes[0].set_title("least squares")
    axes[0].legend(fontsize=8)

    X, y, data_set = covertype()
    best = (
        1
        - cross_val_score(
            LogisticRegression(), X, y, cv=KFold(10, shuffle=True, random_state=0)
        ).mean()
    )
    print(f"{data_set}, 10 folds: LogisticRegression {100 * best:.2f} %")
    steps = np.geomspace(1e-4, 1, 13)
    alphas = np.geomspace(1e-8, 1e-2, 13)
    families = [
        ("streaming SVRG", axes[1], "step_size", steps, StreamingSVRGClassifier()),
        (
            "averaged SGD, log loss",
            axes[1],
            "step_size",
            steps,
            AveragedSGDClassifier("log_loss", average=True),
        ),
        ("PEGASOS", axes[2], "alpha", alphas, PegasosClassifier()),
        ("PEGASOS, averaged", axes[2], "alpha", alphas, PegasosClassifier(average=True)),
    ]
    for name, axis, parameter, values, model in families:
        errors = [
            tree_cross_validate(
                model.set_params(**{parameter: value}), X, y, cv=10, stratify=False
            ).mean
            * 100
            for value in values
        ]
        i = int(np.argmin(errors))
        print(f"    {name:38} {errors[i]:.2f} % at {parameter} = {values[i]:.2g}")
        axis.plot(values, errors, marker=".", label=name)
    for axis, label in ((axes[1], "step size"), (axes[2], "alpha")):
        axis.axhline(100 * best, color="grey", lw=1, label="logistic regression, to the optimum")
        axis.set(xscale="log", xlabel=label, ylabel="10-fold error (%)", ylim=(20, 45))
        axis.set_title(data_set)
        axis.legend(fontsize=8)
    figure.savefig(figure_file, metadata={"Date": None})


if __name__ == "__main__":
    main()
