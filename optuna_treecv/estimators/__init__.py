"""Properties of any estimator: parameters, seeds, ``partial_fit`` and epochs."""
