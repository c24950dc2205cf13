"""What runs and sessions remember: readers and writers of their streams."""
