"""A server that can be killed."""

from tetrad.services.rpc.carrier import GRPC, Carrier


class Fake:
    """A server on a unix socket, or at that address of another `carrier`, that can be killed and started again."""

    interceptors = ()

    def __init__(self, path):
        self.target = f"unix:{path}"
        self.carrier: Carrier = GRPC
        self._server = None
        self.max_receive_bytes = 64 << 20

    async def start(self):
        self._server = self.carrier.server(self.interceptors, [("grpc.max_receive_message_length", self.max_receive_bytes)])
        self._register(self._server)
        await self.carrier.bind(self._server, self.target, None, callers_are_known=False)
        await self._server.start()

    async def kill(self):
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
