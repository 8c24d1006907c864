"""Texts: a hashed bag of words before PEGASOS, tuned; new words do no harm."""

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import make_pipeline

from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective

rng = np.random.default_rng(0)
words = np.array([f"word{i}" for i in range(400)])
y = rng.integers(2, size=500)
texts = [
    " ".join(rng.choice(words[200 * label :][:250], 30)) + (" bright" if label else "")
    for label in y
]
pipeline = make_pipeline(HashingVectorizer(n_features=2**12), PegasosClassifier())
space = {"pegasosclassifier__alpha": FloatDistribution(1e-5, 1.0, log=True)}
objective = treecv_objective(pipeline, texts, y, param_distributions=space)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=10)
assert study.best_value < 0.15
best = objective.best_estimator(study)
assert best.predict(["bright unseen words", "word3 word7"]).shape == (2,)
