"""How the stack asks whether MariaDB is up."""

from __future__ import annotations

import socket
import threading

from stack.mariadb import answers_mariadb


def test_a_server_that_greets_is_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        greetings = [b"J\x00\x00\x00\n5.5.5-10.11", b"HTTP/1.1 400"]

        def serve() -> None:
            for greeting in greetings:
                connection, _ = server.accept()
                connection.sendall(greeting)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert answers_mariadb(port) is None
        assert answers_mariadb(port) == f"127.0.0.1:{port}: no greeting of MariaDB"
        thread.join()
    assert "refused" in str(answers_mariadb(port))
