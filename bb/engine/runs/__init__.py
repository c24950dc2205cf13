"""Runs from their admission to their end, and all that starts, ends or watches them."""
