"""Benchmarks and experiments, each beside its yardstick; `load` reads an experiment's results."""

from bench.report.results import load

__all__ = ["load"]
