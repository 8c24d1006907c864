"""What is known of any estimator: its parameters, seeds, partial_fit and epochs."""
