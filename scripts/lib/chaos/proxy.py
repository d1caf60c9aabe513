"""A proxy in the place of a service's socket, with a link for its fetchers and one for its workers.

A link passes bytes on, or is cut (connections reset, new ones refused), slow (every piece waits) or held
(nothing moves until it is let go). A trap waits for one request and springs once it is sent on, or once its
answer has come and before anybody hears it.
"""

import asyncio
import os
import pathlib
import socket
import struct
import threading

PIECE_BYTES = 64 << 10
PASS, CUT, SLOW, HELD = "pass", "cut", "slow", "held"
SENT, ANSWERED = "sent", "answered"
CREDENTIALS = struct.Struct("3i")


def take_over(endpoint):
    """Moves the socket of a service aside: the path by which clients find it, free now, and where it listens."""
    path = pathlib.Path(endpoint.removeprefix("unix:"))
    # No longer than the path itself, whose length is limited.
    aside = path.with_suffix(".back")
    os.replace(path, aside)
    return path, aside


def caller(writer):
    """The process at the other end of a socket of this machine."""
    credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return CREDENTIALS.unpack(credentials)[0]


class Trap:
    """Calls `spring` with the client's process at one moment of a request that contains `words`."""

    def __init__(self, words, moment, spring):
        self.words, self.moment, self.spring = words, moment, spring
        # The connection that the request came by.
        self.connection = None


class Link:
    """The connections of one kind of clients."""

    def __init__(self):
        self.mode, self.delay = PASS, 0.0
        self.writers = set()
        self.trap = None
        self.moved = asyncio.Event()

    def become(self, mode, delay=0.0):
        self.mode, self.delay = mode, delay
        self.moved.set()
        self.moved = asyncio.Event()
        if mode == CUT:
            for writer in list(self.writers):
                writer.transport.abort()

    async def connect(self, reader, writer, target):
        """Passes on between a client and the service at `target`."""
        if self.mode == CUT:
            return writer.transport.abort()
        self.writers.add(writer)
        try:
            onward = await asyncio.open_unix_connection(target)
        except OSError:
            self.writers.discard(writer)
            return writer.transport.abort()
        self.writers.add(onward[1])
        try:
            await asyncio.gather(
                self.pump(reader, onward[1], SENT, writer), self.pump(onward[0], writer, ANSWERED, writer),
            )
        except OSError:
            pass
        finally:
            for end in (writer, onward[1]):
                self.writers.discard(end)
                end.transport.abort()

    def meets(self, piece, way, connection):
        """Whether this piece triggers the trap."""
        trap = self.trap
        if trap is None:
            return False
        if way == SENT and trap.connection is None and trap.words in piece:
            trap.connection = connection
            return trap.moment == SENT
        return way == ANSWERED and trap.connection is connection and trap.moment == ANSWERED

    def spring(self, connection):
        trap, self.trap = self.trap, None
        trap.spring(caller(connection))

    async def pump(self, reader, writer, way, connection):
        while piece := await reader.read(PIECE_BYTES):
            if self.mode == SLOW:
                await asyncio.sleep(self.delay)
            while self.mode == HELD:
                await self.moved.wait()
            sprung = self.meets(piece, way, connection)
            if sprung and way == ANSWERED:
                self.spring(connection)
            writer.write(piece)
            await writer.drain()
            if sprung and way == SENT:
                self.spring(connection)
        if writer.can_write_eof():
            writer.write_eof()


class Proxy:
    """All links, in a separate thread. `link_of` names the link of a process."""

    def __init__(self, names, link_of):
        self.loop = asyncio.new_event_loop()
        self.names, self.link_of = names, link_of
        self.links, self.server, self.target = {}, None, None
        ready = threading.Event()
        self.thread = threading.Thread(target=self.serve, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait()

    def serve(self, ready):
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(lambda loop, context: None)  # resets are intended
        self.links = {name: Link() for name in self.names}
        self.loop.call_soon(ready.set)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    def stand_before(self, endpoint):
        """Takes the place of the socket on which a service has begun to listen."""
        path, aside = take_over(endpoint)
        asyncio.run_coroutine_threadsafe(self.listen(path, aside), self.loop).result()

    async def listen(self, path, target):
        if self.server is not None:
            # Its path leads to the next one.
            self.server.close()
        self.target = target
        self.server = await asyncio.start_unix_server(self.accept, path)

    async def accept(self, reader, writer):
        link = self.links[self.link_of(caller(writer))]
        await link.connect(reader, writer, self.target)

    def become(self, name, mode, delay=0.0):
        self.loop.call_soon_threadsafe(self.links[name].become, mode, delay)

    def trap(self, name, trap):
        """Sets or removes a trap."""
        self.loop.call_soon_threadsafe(setattr, self.links[name], "trap", trap)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
