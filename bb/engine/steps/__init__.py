"""The interpreter: what each kind of node does."""
