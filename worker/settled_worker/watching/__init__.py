"""How a worker is looked at from outside: metrics, a file for node_exporter, and a small endpoint. Off unless it is asked for.

Promise: nothing in here can hold up the loop that claims and records. It counts in memory; whatever reads runs in threads of its own.
"""
