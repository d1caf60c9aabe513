"""A scripted trainer on the socket of a fetcher."""

import socket

from chaos import frames
from regressions.world import Failed, expect, tensor


class Client:
    """A trainer scripted by a case."""

    def __init__(self, world, job):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(world.folder / f"{job}.sock"))
        self.names = frames.read_hello(self.sock)

    def hello(self, position=None, **names):
        self.sock.sendall(frames.hello({**self.names, **names}, position))
        return self

    def ack(self, epoch, g):
        self.sock.sendall(frames.ack(epoch, g))

    def batch(self):
        """((epoch, g), values) of the next batch, or None at the end."""
        magic, epoch, g, payload = frames.read_frame(self.sock)
        if magic == b"GMBX":
            raise Failed(f"turned away: {payload.decode()}")
        return None if magic == b"GMBE" else ((epoch, g), tensor(payload, "value"))

    def refusal(self):
        """The line by which it is turned away; batches before it do not count."""
        while True:
            magic, _, _, payload = frames.read_frame(self.sock)
            if magic == b"GMBX":
                return payload.decode()
            expect(magic == b"GMB1", f"no refusal but {magic!r}")

    def rest(self, log, limit=1 << 30, ack=True):
        """Takes batches into `log`, each acknowledged; whether the end came."""
        for _ in range(limit):
            got = self.batch()
            if got is None:
                return True
            expect(got[0] not in log, f"batch {got[0]} came twice")
            log[got[0]] = got[1]
            if ack:
                self.ack(*got[0])
        return False

    def close(self):
        self.sock.close()
