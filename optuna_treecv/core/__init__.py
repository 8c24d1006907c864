"""The request, the protocol of engines and the loop that runs them; it knows no engine."""
