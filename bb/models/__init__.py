"""The `Model` protocol and what answers through it."""
