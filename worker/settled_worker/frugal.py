"""Imported before anything else of a worker: what its modules import must not bring in what no worker uses."""

from settled.logs.bound import import_structlog

import_structlog()
