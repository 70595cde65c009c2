"""Ask an endpoint over a real socket, well or badly behaved."""

import socket
from pathlib import Path


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def connect(listen: str) -> socket.socket:
    if listen.startswith("unix:"):
        made = socket.socket(socket.AF_UNIX)
        made.connect(listen.removeprefix("unix:"))  # waits where too many wait already; with a time limit it would fail at once
        made.settimeout(30)
        return made
    host, _, port = listen.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=30)


def say(listen: str, request: bytes) -> bytes:
    """Send bytes and return all that comes back."""
    with connect(listen) as one:
        one.sendall(request)
        return drain(one)


def drain(one: socket.socket) -> bytes:
    found = b""
    try:
        while part := one.recv(65_536):
            found += part
    except ConnectionError:
        pass
    return found


def get(listen: str, path: str) -> tuple[int, str]:
    """Return code and body; code 0 where nobody listens yet."""
    try:
        answer = say(listen, f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    except OSError:
        return 0, ""
    if not answer:
        return 0, ""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def sock(folder: Path) -> str:
    return f"unix:{folder / 'http.sock'}"


__all__ = ["connect", "drain", "free_port", "get", "say", "sock"]
