"""Transaction engines, one module each, found by name."""
