"""Public functions without Optuna, and the runs of estimators for searches and studies."""
