"""The command line: `padres-tx`."""
