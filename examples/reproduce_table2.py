"""
Table 2 of the TreeCV paper
===========================

Reproduce Table 2 (PEGASOS) of Joulani, Gyorgy & Szepesvari (2015) on Covertype. The table shows
the estimated misclassification rate in percent and its standard deviation over repetitions. Each
repetition has its own permutation of the rows.

All means should agree. The deviation of TreeCV falls with k, and so does that of the standard
method in random order. That of the standard method in fixed order does not fall, because its k
models see nearly the same rows in the same order.

scikit-learn downloads the data once (11 MB) or finds it in ``$SCIKIT_LEARN_DATA``. If it can do
neither, a table of 20,000 rows takes the place of Covertype. The errors then differ from the
paper's, but their deviations fall in the same way::

    python -m pip install '.[docs]' && python examples/reproduce_table2.py [repetitions]
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import fetch_covtype
from sklearn.datasets import make_classification

from optuna_treecv import PegasosClassifier
from optuna_treecv import tree_cross_validate

# The paper's figures, from 100 repetitions.
PAPER = {
    ("treecv", "fixed", 5): "30.682 +- 1.213",
    ("treecv", "random", 5): "30.839 +- 0.990",
    ("standard", "fixed", 5): "30.825 +- 1.925",
    ("standard", "random", 5): "30.768 +- 1.124",
    ("treecv", "fixed", 100): "30.677 +- 0.304",
    ("treecv", "random", 100): "30.634 +- 0.210",
    ("standard", "fixed", 100): "30.636 +- 2.002",
    ("standard", "random", 100): "30.624 +- 0.234",
    ("treecv", "fixed", "loo"): "30.640 +- 0.056",
    ("treecv", "random", "loo"): "30.637 +- 0.059",
}

repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
try:
    X, y = fetch_covtype(return_X_y=True)
except OSError:
    print("There is no Covertype and no way to download it: a made table takes its place.")
    X, y = make_classification(20_000, 54, n_informative=20, flip_y=0.2, random_state=0)
X /= X.std(axis=0)
model = PegasosClassifier(alpha=1e-6, fit_intercept=False)

figure, axis = plt.subplots(layout="constrained")
print(f"{'k':>4}  {'method':8}  {'order':6}  {'ours (%)':>15}  {'paper (%)':>15}  {'s each':>6}")
for place, ((method, order, k), paper) in enumerate(PAPER.items()):
    options = {"cv": k, "stratify": False, "method": method, "order": order}  # as in the paper
    result = tree_cross_validate(model, X, y == 1, n_repeats=repetitions, **options)
    estimates = 100 * result.test_score.reshape(repetitions, -1).mean(axis=1)
    ours = f"{np.mean(estimates):.3f} +- {np.std(estimates):.3f}"
    seconds = result.seconds / repetitions
    print(f"{k!s:>4}  {method:8}  {order:6}  {ours:>15}  {paper:>15}  {seconds:6.2f}", flush=True)
    for at, each, color in ((place - 0.1, ours, "C0"), (place + 0.1, paper, "C1")):
        axis.errorbar(at, *map(float, each.split(" +- ")), fmt="o", color=color)
labels = [f"{method}, {order}, {k}" for method, order, k in PAPER]
axis.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
axis.set(ylabel="error (%)", title="ours (blue) and the paper's (orange), with deviations")
figure.savefig("table2.svg")
