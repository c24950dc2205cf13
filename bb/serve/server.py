"""Running a service with uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket

import uvicorn

from bb.serve.service import Service


class _Server(uvicorn.Server):
    """A server whose service starts only where it can be reached, and learns of the end when that begins.

    uvicorn starts a service, whose runs then go on, before it looks for the port, and tells it of the end when all
    connections are closed.
    """

    def __init__(self, service: Service, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises:
        SystemExit: something else has the port.
        """
        host, port = self.config.host, self.config.port
        try:
            probe = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
        except OSError as error:
            # asyncio names the address once more; a name that is none has no number of the system
            why = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
            raise SystemExit(f"bb: cannot listen on {host}:{port}: {why}") from error
        probe.close()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.close()
        await super().shutdown(sockets)


def server_of(service: Service, *, host: str, port: int, log_level: str | None = None) -> uvicorn.Server:
    """A server for a service; its `serve()` runs it in the running loop."""
    config = uvicorn.Config(
        service,
        host=host,
        port=port,
        lifespan="on",
        log_level=log_level,
        timeout_graceful_shutdown=math.ceil(service.grace.total_seconds()) + 2,
    )
    return _Server(service, config)


async def served(service: Service, *, host: str, port: int) -> None:
    """Serve in the running loop until SIGINT or SIGTERM, or until this is cancelled; it shuts down in good order.

    Raises:
        SystemExit: it could not start.
    """
    server = server_of(service, host=host, port=port)
    serving = asyncio.ensure_future(server.serve())
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await asyncio.wait([serving])
        raise


def serve(service: Service, *, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM, in a loop of its own."""
    with contextlib.suppress(KeyboardInterrupt):  # which is how it is told to end
        server_of(service, host=host, port=port).run()
