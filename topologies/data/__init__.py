"""The named topologies, one YAML file each (a package, so that installing takes them along)."""
