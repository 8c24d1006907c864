"""Learners: the estimators of this package, and adapters for scikit-learn's and River's."""
