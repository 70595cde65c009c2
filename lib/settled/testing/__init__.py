"""What tests of applications need: a clock of their own."""

from settled.testing.clock import VirtualClock

__all__ = ["VirtualClock"]
