"""One cross-validation: what it consists of, how its folds are evaluated, its result."""
