"""A server that can be killed."""

import grpc


class Fake:
    """A server on a unix socket that can be killed and started again."""

    interceptors = ()

    def __init__(self, path):
        self.target = f"unix:{path}"
        self._server = None
        self.max_receive_bytes = 64 << 20

    async def start(self):
        self._server = grpc.aio.server(
            interceptors=self.interceptors, options=[("grpc.max_receive_message_length", self.max_receive_bytes)]
        )
        self._register(self._server)
        self._server.add_insecure_port(self.target)
        await self._server.start()

    async def kill(self):
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
