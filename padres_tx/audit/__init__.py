"""Auditing a run from the records of its brokers: the rules, once for all who apply them.

Holds what engines promise (`promises`), the parsing of a record's fields (`record_fields`), the
replay of a broker's tables from its records (`replayed_tables`, `replay`), the tables that a run
should end with (`expected_tables`), and the graph of which unit comes before which
(`dependency_graph`). `proofs.checkers` applies the rules to a history in memory and explains its
findings; the Spark job of `bench.spark` applies them to experiments of any size.

Rule: imports the overlay's vocabulary, matching and tables. All modules except `promises` are
shipped to Spark executors, which have no other package than sortedcontainers; `promises` also
imports padres_tx's top.
"""
