"""Name an output by its digest, so that the chain binds a text that retention may purge."""

import base64
import hashlib


def digest(text: str) -> str:
    """Return SHA-256 of a canonical text, URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
