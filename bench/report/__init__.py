"""Reading, judging, comparing and drawing the results of an experiment.

Holds the tables of results, the claims that they are held against, the comparison of two
experiments, the figures and the page.

Rule: imports the modules at bench's top. It never imports Spark: results are read and drawn
without pyspark.
"""
