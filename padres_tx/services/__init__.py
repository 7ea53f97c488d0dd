"""The services that brokers can host beside engines, one module each.

Rule: pure, as `overlay.broker` is. A service imports `overlay.broker` and below, and the messages
of `padres_tx`; never another service, a client or a host. A topology lists the services that its
brokers host, and `padres_tx.registry` imports those and no others.
"""
