"""What tests of applications need of the worker: a worker that a test turns by hand, and the certification of contracts."""
