"""What the expressions of a flow come to."""
