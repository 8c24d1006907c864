"""Ensembles of other libraries while they grow, tree by tree; a file for each library."""
