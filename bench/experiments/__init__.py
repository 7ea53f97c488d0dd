"""The paper's experiments: `padres-tx experiment run`.

Holds the specs (`specs/*.yaml`: Figures 5 to 9, each in a full and a quick version), the workloads,
the client processes, one run, and the sweep over all runs of some specs.

Rule: imports the modules at bench's top, `bench.micro.path` for counted delays, overlay, padres_tx
and topologies. It writes records; it neither reads results nor imports Spark.
"""
