"""Kernel machines: support vector machines, kernel ridge regression and Gaussian processes."""
