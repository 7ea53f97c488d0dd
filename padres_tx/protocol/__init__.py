"""The broker's half of transactions that engines share: operations, votes, decisions, questions.

Rule: pure, as `overlay.broker` is. Imports `overlay.broker` and below, and the messages of
`padres_tx`; never a client, a host or a particular engine.
"""
