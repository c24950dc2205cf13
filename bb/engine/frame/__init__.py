"""What a step needs where it stands: its run, its scope, what it may say and replay."""
