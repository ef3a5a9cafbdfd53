"""Where a service listens, and what callers must send: checked before anything is
loaded."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from colonnade.errors import ConfigError

SHORTEST = 16
"""The fewest characters of a token."""


def token_in(file: Path, where: str) -> str:
    """The token in a file; `where` is how its user named it."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} cannot be read ({type(error).__name__}).") from None
    return checked_token(text, where)


def checked_token(text: str, where: str) -> str:
    token = text.strip()
    if (
        len(token) < SHORTEST
        or not token.isascii()
        or not token.isprintable()
        or " " in token
    ):
        raise ConfigError(
            f"{where} must hold one word of at least {SHORTEST} ASCII characters; found"
            f" {len(token)}. Make one: openssl rand -hex 32."
        )
    return token


def check_reach(host: str, token: str | None, where: str, cure: str) -> None:
    """Raise where other machines can reach the service and there is no token."""
    if token is None and not loopback(host):
        raise ConfigError(
            f"{where} can be reached from other machines, and there is no token. Make"
            f" one with openssl rand -hex 32 > token.txt and {cure}; put something that"
            " speaks TLS in front."
        )


def loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, where: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"{where} cannot be listened on: {error.strerror or error}. Choose another."
        ) from None
    # connections inherit it; else an answer's body waits 40 ms until the caller has
    # acknowledged its headers
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
