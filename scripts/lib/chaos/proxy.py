"""Small TCP proxies: one to each address of the service, for the fetcher and for the workers.

A link passes bytes on, or is cut (connections reset, new ones refused), slow (every piece waits) or held
(nothing moves until it is let go). A trap waits for one request and springs once it is sent on, or once its
answer has come and before anybody hears it.
"""

import asyncio
import threading

PIECE_BYTES = 64 << 10
PASS, CUT, SLOW, HELD = "pass", "cut", "slow", "held"
SENT, ANSWERED = "sent", "answered"


class Trap:
    """Calls `spring` with the client's port at one moment of a request that contains `words`."""

    def __init__(self, words, moment, spring):
        self.words, self.moment, self.spring = words, moment, spring
        self.client = None


class Link:
    """One listening port and its target."""

    def __init__(self, name):
        self.name, self.port, self.target = name, None, None
        self.mode, self.delay = PASS, 0.0
        self.writers, self.accepted = set(), 0
        self.trap = None
        self.moved = asyncio.Event()

    async def listen(self):
        server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def become(self, mode, delay=0.0):
        self.mode, self.delay = mode, delay
        self.moved.set()
        self.moved = asyncio.Event()
        if mode == CUT:
            for writer in list(self.writers):
                writer.transport.abort()

    async def accept(self, reader, writer):
        self.accepted += 1
        if self.mode == CUT or self.target is None:
            return writer.transport.abort()
        self.writers.add(writer)
        try:
            onward = await asyncio.open_connection(*self.target)
        except OSError:
            self.writers.discard(writer)
            return writer.transport.abort()
        self.writers.add(onward[1])
        try:
            port = writer.get_extra_info("peername")[1]
            await asyncio.gather(
                self.pump(reader, onward[1], SENT, port), self.pump(onward[0], writer, ANSWERED, port),
            )
        except OSError:
            pass
        finally:
            for end in (writer, onward[1]):
                self.writers.discard(end)
                end.transport.abort()

    def meets(self, piece, way, port):
        """Whether this piece triggers the trap."""
        trap = self.trap
        if trap is None:
            return False
        if way == SENT and trap.client is None and trap.words in piece:
            trap.client = port
            return trap.moment == SENT
        return way == ANSWERED and trap.client == port and trap.moment == ANSWERED

    def spring(self, port):
        trap, self.trap = self.trap, None
        trap.spring(port)

    async def pump(self, reader, writer, way, port):
        while piece := await reader.read(PIECE_BYTES):
            if self.mode == SLOW:
                await asyncio.sleep(self.delay)
            while self.mode == HELD:
                await self.moved.wait()
            sprung = self.meets(piece, way, port)
            if sprung and way == ANSWERED:
                self.spring(port)
            writer.write(piece)
            await writer.drain()
            if sprung and way == SENT:
                self.spring(port)
        if writer.can_write_eof():
            writer.write_eof()


class Proxy:
    """All links, in a separate thread."""

    def __init__(self, names):
        self.loop = asyncio.new_event_loop()
        self.links, self.servers = {}, []
        ready = threading.Event()
        self.thread = threading.Thread(target=self.serve, args=(names, ready), daemon=True)
        self.thread.start()
        ready.wait()

    def serve(self, names, ready):
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(lambda loop, context: None)  # resets are intended

        async def start():
            for name in names:
                self.links[name] = Link(name)
                self.servers.append(await self.links[name].listen())
            ready.set()

        self.loop.run_until_complete(start())
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    def become(self, name, mode, delay=0.0):
        self.loop.call_soon_threadsafe(self.links[name].become, mode, delay)

    def trap(self, name, trap):
        """Sets or removes a trap."""
        self.loop.call_soon_threadsafe(setattr, self.links[name], "trap", trap)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
