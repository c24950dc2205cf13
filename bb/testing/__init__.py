"""What tests of flows need."""
