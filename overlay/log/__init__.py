"""Where a node's inputs are kept in order: the log, in memory or on disk.

Rule: imports overlay.errors and the vocabulary only; knows no records, no core, no links; bytes in,
bytes out. Only `os_disk` talks to the operating system, and only `worker` has threads; everything
else runs on a simulated disk as well, and the same operations there give the same files.
"""
