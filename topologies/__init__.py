"""Broker trees as data: the model, generators and the named ones."""
