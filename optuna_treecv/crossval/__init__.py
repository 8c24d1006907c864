"""The public functions that do not need Optuna, and the runs of estimators for searches."""
