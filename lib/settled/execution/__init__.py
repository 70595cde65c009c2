"""Runs one attempt's user code, bounded in time, and hands back exactly one Report of how it ended.

Promise: nothing in this package knows the database. It imports settled.core and settled.clock only.
"""
