"""scikit-learn's side: a study behind an estimator with ``fit`` and ``predict``."""
