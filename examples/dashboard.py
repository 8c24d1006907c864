"""
A study in the dashboard
========================

Show a study in optuna-dashboard, with a note and figures. A store keeps every fold score.

.. image:: /figures/dashboard.png
   :alt: The page of a study, with figures of errors, time, and how far the trials lie apart.

::

    python -m pip install '.[dashboard]' && python examples/dashboard.py
"""
# sphinx_gallery_thumbnail_path = 'figures/dashboard.png'

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_treecv import PegasosClassifier
from optuna_treecv import treecv_objective
from optuna_treecv.dashboard import DashboardCallback
from optuna_treecv.dashboard import publish

STUDY = "sqlite:///treecv_study.db"  # Optuna's storage: trials, the note and the figures
STORE = "sqlite:///treecv_models.db"  # the store of optuna_treecv: fold scores and shared models

X, y = load_breast_cancer(return_X_y=True)
objective = treecv_objective(
    make_pipeline(StandardScaler(), PegasosClassifier()),
    X,
    y,
    param_distributions={
        "pegasosclassifier__alpha": FloatDistribution(1e-5, 1e2, log=True),
        "pegasosclassifier__average": CategoricalDistribution([True, False]),
    },
    cv="loo",
    cache="memory",
    store=STORE,
)

optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    storage=STUDY, study_name="pegasos", direction=objective.direction, load_if_exists=True
)
study.optimize(objective, n_trials=40, callbacks=[DashboardCallback(STORE, every=20)])
publish(study, STORE)

print(f"Best: {study.best_params}, leave-one-out error {study.best_value:.2%}.")
print(f"Look at the study with: optuna-dashboard {STUDY}")
