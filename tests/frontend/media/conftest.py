import pytest

from tests.frontend.media.web_server import running_web_server
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.media.loader import MediaLoader

LOOPBACK = ("127.0.0.0/8",)


@pytest.fixture
async def web():
    async with running_web_server() as server:
        yield server


@pytest.fixture
def load():
    """`await load(url, **settings)` gives the item of a URL."""

    async def load_one(url, **settings):
        [item] = await MediaLoader(FrontendSettings(**settings)).load([MediaSource(where="here", url=url)])
        return item

    return load_one


@pytest.fixture
def load_web(load):
    """The same, with a server that may fetch from this machine."""

    async def load_one(url, **settings):
        fields = {"allowed_media_domains": ("127.0.0.1", "localhost"), "allowed_media_networks": LOOPBACK}
        return await load(url, **(fields | settings))

    return load_one
