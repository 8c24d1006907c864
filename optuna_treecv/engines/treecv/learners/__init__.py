"""Learners: this package's incremental estimators, and adapters for scikit-learn and River."""
