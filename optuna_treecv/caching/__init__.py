"""Shares models between trials: keys of models, and caches."""
