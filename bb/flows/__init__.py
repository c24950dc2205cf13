"""The tree that everything else works on."""
