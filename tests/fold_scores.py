"""Print digests of many fold scores; two builds with the same output give the same bits.

    python tests/fold_scores.py                   # of all learners
    python tests/fold_scores.py Pegasos HistTree  # of those whose name begins so

Run by ``.ci/run`` and ``.ci/nightly`` with CPU dispatch on and off. Not a test by itself.
"""

import hashlib
from itertools import product
import sys

import numpy as np
from scipy import sparse
from sklearn.base import is_regressor

from optuna_treecv import AveragedSGDClassifier
from optuna_treecv import HistTreeClassifier
from optuna_treecv import HistTreeRegressor
from optuna_treecv import PegasosClassifier
from optuna_treecv import StreamingSVRGClassifier
from optuna_treecv import StreamingSVRGRegressor
from optuna_treecv import tree_cross_val_predict
from optuna_treecv import tree_cross_validate_many
from optuna_treecv.paper import LSQSGDRegressor
from optuna_treecv.paper import StreamingGaussianDensity
from optuna_treecv.paper import StreamingKMeans

METHODS = {"StreamingKMeans": "predict", "StreamingGaussianDensity": "score_samples"}


def is_asked_for(estimator):
    return type(estimator).__name__.startswith(tuple(sys.argv[1:] or [""]))


rng = np.random.default_rng(0)
X = rng.normal(size=(3000, 37))
noise = rng.normal(size=3000)
y = X @ rng.normal(size=37) / 6 + 0.3 * noise

estimators = [
    *(PegasosClassifier(1e-3, average=a, project=p) for a, p in product([False, True], repeat=2)),
    AveragedSGDClassifier("log_loss", average_start=500, learning_rate="invscaling", power_t=0.3),
    StreamingSVRGClassifier(step_size=0.02),
    StreamingSVRGRegressor("huber"),
    StreamingKMeans(5),
    StreamingGaussianDensity("full"),
    LSQSGDRegressor(radius=0.5),
    LSQSGDRegressor(step_size=0.01, radius=np.inf, average=False, fit_intercept=True),
]
estimators = [one for one in estimators if is_asked_for(one)]
for estimator, dtype, order, cv, form in product(
    estimators,
    [np.float64, np.float32],
    ["fixed", "random"],
    [10, "loo"],
    [np.asarray, sparse.csr_array],
):
    if form is sparse.csr_array and not estimator.__sklearn_tags__().input_tags.sparse:
        continue
    regressor = is_regressor(estimator)
    predictions = tree_cross_val_predict(
        estimator,
        form(X.astype(dtype)),
        y if regressor else np.digitize(y, [-0.3, 0.5]),
        cv=cv,
        stratify=False,
        order=order,
        response_method=METHODS.get(type(estimator).__name__)
        or ("predict" if regressor else "decision_function"),
    )
    digest = hashlib.sha256(np.ascontiguousarray(predictions).tobytes()).hexdigest()[:16]
    print(digest, str(estimator).replace("\n", ""), np.dtype(dtype), order, cv, form.__name__)

# Lanes: their results, too, must not depend on the vector instructions of the machine.
lanes = [
    [PegasosClassifier(alpha, average=True) for alpha in np.geomspace(1e-6, 10, 20)],
    [AveragedSGDClassifier("log_loss", step_size=eta) for eta in np.geomspace(1e-4, 1, 20)],
    [StreamingSVRGClassifier(step_size=eta) for eta in np.geomspace(1e-4, 1, 20)],
]
lanes = [models for models in lanes if is_asked_for(models[0])]
for models, dtype, form in product(
    lanes, [np.float64, np.float32], [np.asarray, sparse.csr_array]
):
    target = np.digitize(y, [-0.3, 0.5])
    results = tree_cross_validate_many(
        models, form(X.astype(dtype)), target, cv="loo", scoring="hinge"
    )
    scores = np.concatenate([result.test_score for result in results])
    digest = hashlib.sha256(scores.tobytes()).hexdigest()[:16]
    print(digest, len(models), models[0], np.dtype(dtype), form.__name__)

# Weights of rows, and balanced classes where there are classes.
weights = rng.exponential(size=3000) * (rng.random(3000) > 0.1)
for estimator, dtype in product(estimators, [np.float64, np.float32]):
    regressor = is_regressor(estimator)
    if "class_weight" in estimator.get_params():
        estimator.set_params(class_weight="balanced")
    predictions = tree_cross_val_predict(
        estimator,
        X.astype(dtype),
        y if regressor else np.digitize(y, [-0.3, 0.5]),
        cv=30,
        stratify=False,
        sample_weight=weights,
        response_method=METHODS.get(type(estimator).__name__)
        or ("predict" if regressor else "decision_function"),
    )
    digest = hashlib.sha256(np.ascontiguousarray(predictions).tobytes()).hexdigest()[:16]
    print(digest, "weighted", str(estimator).replace("\n", ""), np.dtype(dtype))

# Decision trees of all folds.
trees = [
    HistTreeClassifier(random_state=0),
    HistTreeClassifier(criterion="entropy", min_samples_leaf=5, max_bins=32, random_state=0),
    HistTreeRegressor(min_samples_leaf=5, random_state=0),
]
for tree, sample_weight in product(filter(is_asked_for, trees), [None, weights]):
    predictions = tree_cross_val_predict(
        tree,
        X,
        y if is_regressor(tree) else np.digitize(y, [-0.3, 0.5]),
        cv=10,
        stratify=False,
        sample_weight=sample_weight,
        response_method="predict" if is_regressor(tree) else "predict_proba",
    )
    digest = hashlib.sha256(np.ascontiguousarray(predictions).tobytes()).hexdigest()[:16]
    print(digest, str(tree).replace("\n", ""), sample_weight is not None)
