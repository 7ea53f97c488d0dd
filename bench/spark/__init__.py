"""The Spark job that turns an experiment's records into its results: `padres-tx experiment report`.

Holds the session, the records as DataFrames, summaries, the checks of what clients and brokers
recorded, made-up records for trying the job, and the command, which also writes the page.

Rule: imports the modules at bench's top, `bench.report`, overlay and padres_tx. It is the only room
that imports pyspark.
"""
