"""Who may talk to a server over HTTP: loopback only, with a token of a file, a variable or a credential."""

import os
from pathlib import Path

import pytest

from settled import ConfigurationError
from settled.integrations.mcp import Address, find_token, parse_address

TOKEN = "t" * 32


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("8000", "127.0.0.1", 8000),
        (":8000", "127.0.0.1", 8000),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("127.9.9.9:1", "127.9.9.9", 1),
        ("localhost:65535", "127.0.0.1", 65535),
        ("[::1]:8000", "::1", 8000),
    ],
)
def test_a_loopback_address_is_taken(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:8000", "[::]:8000", "192.168.1.2:80", "10.0.0.1:80", "example.org:80", "localhost.example.org:80", "127.0.0.1.nip.io:80"],
)
def test_an_address_that_others_can_reach_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no loopback address"):
        parse_address(text)


@pytest.mark.parametrize("text", ["", "x", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:８０"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not PORT or HOST:PORT"):
        parse_address(text)


def test_an_address_in_a_url() -> None:
    assert Address("127.0.0.1", 0).url(81) == "http://127.0.0.1:81/mcp"
    assert Address("::1", 0).url(81) == "http://[::1]:81/mcp"


def secret(path: Path, text: str = TOKEN + "\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_comes_from_a_file_else_a_variable_else_a_credential(tmp_path: Path) -> None:
    file = secret(tmp_path / "token", "f" * 40 + "\n")
    secret(tmp_path / "settled-mcp-token", "c" * 40)
    environ = {"SETTLED_MCP_TOKEN": "v" * 40, "CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert find_token(str(file), environ) == "f" * 40
    assert find_token(None, environ) == "v" * 40
    del environ["SETTLED_MCP_TOKEN"]
    assert find_token(None, environ) == "c" * 40


def test_no_token_or_a_bad_one_starts_nothing_and_is_never_shown(tmp_path: Path) -> None:
    bad = {
        "short": "s" * 31,
        "empty": "",
        "two": f"{TOKEN}\n{TOKEN}",
        "spaced": f"{TOKEN} {TOKEN}",
        "long": "l" * 5000,
        "letters": "ä" * 40,
    }
    for name, text in bad.items():
        with pytest.raises(ConfigurationError, match=r"the token in .* is not one line") as refused:
            find_token(str(secret(tmp_path / name, text)), {})
        assert not text or text.strip() not in str(refused.value)
    with pytest.raises(ConfigurationError, match="none was given"):
        find_token(None, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        find_token(str(tmp_path / "absent"), {"SETTLED_MCP_TOKEN": TOKEN})  # what was named is not replaced by what was not
    with pytest.raises(ConfigurationError, match="cannot be read"):
        find_token(str(tmp_path), {})
    with pytest.raises(ConfigurationError, match="open to everybody"):
        find_token(str(secret(tmp_path / "open", mode=0o644)), {})
    (tmp_path / "bytes").write_bytes(os.urandom(64) + b"\xff")
    (tmp_path / "bytes").chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"is no text|is not one line"):
        find_token(str(tmp_path / "bytes"), {})
