"""Programs to read and copy."""
