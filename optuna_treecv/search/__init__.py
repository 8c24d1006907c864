"""The interface of scikit-learn: a search estimator with ``fit`` and ``predict``."""
