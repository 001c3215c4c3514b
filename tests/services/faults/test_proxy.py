"""The proxy between a client and a store that echoes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from mailslice.testing.faults.proxy import Proxy


def echo(listener: socket.socket) -> None:
    def talk(client: socket.socket) -> None:
        while data := client.recv(1000):
            client.sendall(data)
        client.close()

    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=talk, args=(client,), daemon=True).start()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=echo, args=(listener,), daemon=True).start()
    made = Proxy(listener.getsockname())
    yield made
    made.close()
    listener.close()


def client_of(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def heard(client: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count and (data := client.recv(count - len(got))):
        got += data
    return got


def test_bytes_pass_both_ways_and_are_counted(proxy: Proxy) -> None:
    with client_of(proxy) as client:
        client.sendall(b"hello")
        assert heard(client, 5) == b"hello"
    assert proxy.passed == 10


def test_a_cut_closes_what_is_open_and_refuses_until_it_is_mended(proxy: Proxy) -> None:
    with client_of(proxy) as client:
        client.sendall(b"x")
        assert heard(client, 1) == b"x"
        proxy.cut()
        assert client.recv(1) == b""
    with pytest.raises(OSError):
        client_of(proxy)
    proxy.mend()
    with client_of(proxy) as client:
        client.sendall(b"again")
        assert heard(client, 5) == b"again"


def test_what_is_stalled_comes_when_it_is_mended(proxy: Proxy) -> None:
    with client_of(proxy) as client:
        client.sendall(b"1")
        assert heard(client, 1) == b"1"
        proxy.stall()
        client.sendall(b"2")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(5)
        proxy.mend()
        assert heard(client, 1) == b"2"


def test_it_breaks_off_after_so_many_bytes_once(proxy: Proxy) -> None:
    with client_of(proxy) as client:
        proxy.break_off(3)
        client.sendall(b"abcdef")
        assert heard(client, 6) in (
            b"",
            b"abc",
        )  # the store had three bytes; whether its answer came through is a race
    with client_of(proxy) as client:
        client.sendall(b"abcdef")
        assert heard(client, 6) == b"abcdef"


def test_the_store_gets_exactly_the_bytes_before_the_break() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(5)
    proxy = Proxy(listener.getsockname())
    with client_of(proxy) as client:
        store, _ = listener.accept()
        proxy.break_off(4)
        client.sendall(b"abcdef")
        assert heard(store, 6) == b"abcd"
        store.close()
    proxy.close()
    listener.close()


def test_a_store_that_is_not_there_closes_its_clients_and_the_proxy_goes_on() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    target = listener.getsockname()
    listener.close()
    proxy = Proxy(target)
    for _ in range(2):
        with client_of(proxy) as client:
            assert client.recv(1) == b""
    proxy.close()
