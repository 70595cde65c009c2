"""The shop of `settled demo`: a destination of its own that can lose its answer, and a client for it."""
