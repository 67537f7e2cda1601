"""Each node's connection to the head node, over the chosen interface: blocking sockets with deadlines.

The head, node rank 0, listens on the rendezvous port. Every other node sends it a message that begins with the
preflight's token and is larger than any MTU; the head sends it back.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress

MESSAGE_BYTES = 256 * 1024  # the MTU of a loopback interface is 65536
EXCHANGE_S = 5.0  # for the message, and for the answer
UNREACHABLE_S = 3.0  # routes and neighbours settle in this time; a head that only starts has until the deadline
RETRY_S = 0.1
LOOK_S = 0.5  # between two looks at what the other nodes have told


class HeadServer(socketserver.ThreadingTCPServer):
    """The head's side. Raises OSError if it cannot listen there."""

    allow_reuse_address = True  # as torch's store: closed connections do no harm
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: str, port: int, token: str, others: int) -> None:
        self.request_queue_size = max(128, others)
        super().__init__((address, port), _Echo)
        self.message = _message(token)
        self.answered = threading.Semaphore(0)
        self._others = others
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": RETRY_S}, daemon=True).start()

    def finish(self, until_s: float, have_all_told: Callable[[], bool]) -> None:
        """Wait until all other nodes have been answered, or have told that they will not come; then close.

        until_s: at most until this time on the monotonic clock.
        """
        waiting = self._others
        while waiting and time.monotonic() < until_s and not have_all_told():
            waiting -= self.answered.acquire(timeout=min(LOOK_S, max(0.0, until_s - time.monotonic())))
        self.shutdown()
        self.server_close()


class _Echo(socketserver.StreamRequestHandler):
    timeout = EXCHANGE_S
    server: HeadServer

    def handle(self) -> None:
        with suppress(OSError):
            if self.rfile.read(MESSAGE_BYTES) == self.server.message:
                self.wfile.write(self.server.message)
                self.rfile.read(1)  # the node hangs up first, so that the head's port stays free
                self.server.answered.release()


def reach_head(own: str, head: tuple[str, int], token: str, until_s: float) -> None:
    """Send the message to the head and read it again. Raises OSError that says why it did not come back.

    own: the address of this node that the connection starts from. until_s: on the monotonic clock.
    """
    with _connect(own, head, until_s) as connection, connection.makefile("rb") as answers:
        connection.settimeout(2 * EXCHANGE_S)
        answer = b""
        with suppress(OSError):
            connection.sendall(_message(token))
            answer = answers.read(MESSAGE_BYTES)
        if answer != _message(token):
            raise OSError("it connects, but large packets do not arrive, or another program listens there")


def _connect(own: str, head: tuple[str, int], until_s: float) -> socket.socket:
    unreachable_until_s = min(until_s, time.monotonic() + UNREACHABLE_S)
    while True:
        try:
            return socket.create_connection(head, max(0.1, until_s - time.monotonic()), (own, 0))
        except TimeoutError:
            raise OSError("no answer in time") from None
        except ConnectionRefusedError as error:
            if time.monotonic() > until_s:
                raise OSError(error.strerror) from error
        except OSError as error:
            if time.monotonic() > unreachable_until_s:
                raise OSError(error.strerror or str(error)) from error
        time.sleep(RETRY_S)


def _message(token: str) -> bytes:
    return f"ddp-ladder preflight {token}\n".encode().ljust(MESSAGE_BYTES, b"-")
