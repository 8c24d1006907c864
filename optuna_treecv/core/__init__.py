"""The request, the protocol of engines and the loop that runs them, independent of engines."""
