"""What runs a flow and remembers it."""
