"""The `Store` protocol and its backends."""
