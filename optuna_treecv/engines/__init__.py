"""The list of engines: each one is a folder behind the protocol of ``core.engine``."""
