"""The worker: a pump that dispatches and records, and sweeps that look after what waits."""
