"""An unchanged network is fitted; with epochs it is trained along the tree, and as good."""

import warnings

import optuna
from optuna.distributions import FloatDistribution
from optuna.distributions import IntDistribution
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from optuna_treecv import treecv_objective
from optuna_treecv import TreeCVSearchCV

X, y = load_digits(return_X_y=True)
X, y = X[:400] / 16, y[:400]
warnings.simplefilter("ignore", ConvergenceWarning)

search = TreeCVSearchCV(
    MLPClassifier((32,), max_iter=300, random_state=0),
    param_grid={"alpha": [1e-4]},
    cv=3,
    random_state=0,
)
search.fit(X, y)
assert search.best_estimator_.n_iter_ > 10
assert search.best_estimator_.score(X, y) > 0.97

space = {
    "n_epochs": IntDistribution(20, 40),
    "learning_rate_init": FloatDistribution(0.003, 0.03, log=True),
}
network = MLPClassifier((32,), batch_size=32, random_state=0)
objective = treecv_objective(network, X, y, param_distributions=space, cv=3)
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
study.optimize(objective, n_trials=2)
best = objective.best_estimator(study)
assert "method='treecv'" in objective.explain(study.best_params)
assert best.score(X, y) > 0.97
