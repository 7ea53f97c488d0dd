"""Short programs to read and copy; each runs on the overlay of `padres-tx up three`.

Rule: imports only the public names of `padres_tx`, as a program of yours would.
"""
