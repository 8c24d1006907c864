"""The engine "neighbors": one neighbour search per fold for all candidates."""
