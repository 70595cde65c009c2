"""Name an output by its digest, so that the chain binds a text that retention may purge."""

from settled.store.bodies import body_digest as digest

__all__ = ["digest"]
