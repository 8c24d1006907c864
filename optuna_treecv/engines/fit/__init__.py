"""The engine "fit": the estimator is fitted on the training rows of each fold."""
