"""What runs a broker core: processes over TCP (`tcp`, `host`), the simulator, and in-process.

Rule: may import every room of `overlay`. This is the only one with sockets and clocks; nothing in
`overlay` but `hosts` imports it.
"""
