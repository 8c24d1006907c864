"""Optuna's side: a trial becomes an estimator, and its result a value."""
