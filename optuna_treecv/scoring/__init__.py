"""Losses, which a study minimises, and scikit-learn scorers, which it maximises."""
