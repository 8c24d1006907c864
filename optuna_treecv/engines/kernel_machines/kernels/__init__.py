"""The solver of dual problems, and the Gram matrix of the RBF kernel."""
