"""A TCP proxy in front of a server, which a test makes stall or drop its connections."""

from __future__ import annotations

from contextlib import suppress
import socket
from threading import Event
from threading import Lock
from threading import Thread


class Proxy:
    """Passes bytes on between clients and a server on this machine.

    Attributes
    ----------
    port : int
        Where clients connect to.
    was_hit : Event
        Set as soon as a fault has begun.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.was_hit = Event()
        self._passes = Event()
        self._passes.set()
        self._fault, self._at = "", b""
        self._sockets: list[socket.socket] = []
        self._lock = Lock()
        Thread(target=self._accept, daemon=True).start()

    def break_at(self, fault: str, at: bytes = b"") -> None:
        """Begin a fault when a client sends these bytes: "stall" or "drop" all connections."""
        self.was_hit.clear()
        self._fault, self._at = fault, at

    def mend(self) -> None:
        """Pass bytes on again; connections that were dropped stay so."""
        self._fault = ""
        self._passes.set()

    def close(self) -> None:
        self._fault = "drop"
        self._passes.set()
        self._listener.close()
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            dropped, self._sockets = self._sockets, []
        for one in dropped:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                return
            with self._lock:
                self._sockets += [client, server]
            Thread(target=self._pass, args=(client, server, True), daemon=True).start()
            Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while sent := source.recv(2**16):
                if is_client and self._fault and self._at in sent:
                    self._passes.clear()
                    self.was_hit.set()
                    self._at = b""  # from now on everything
                    if self._fault == "drop":
                        self._passes.set()
                        self._drop()
                self._passes.wait()
                target.sendall(sent)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
