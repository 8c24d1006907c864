"""Fold scores: losses, which a study minimises, and scikit-learn scorers, which it maximises."""
