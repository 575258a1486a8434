"""Images of requests that several ranks compute: the leader alone is asked to encode, and answers for all."""

import asyncio

from tests.engine_core_svc.fake_worker import expected
from tests.engine_core_svc.media_values import IMAGES, feature, prompt_with
from tests.engine_core_svc.service_fakes import Client
from tests.engine_core_svc.test_group_faults import FakeRank, serving
from tetrad.engine_core_svc.service import serve
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import engine_core_pb2_grpc


async def test_the_leader_encodes_for_all_ranks(socket_directory):
    ranks = [FakeRank("a"), FakeRank("b")]
    for rank in ranks:
        rank.encoder.modalities = IMAGES
    shutdown, image = asyncio.Event(), feature("a", 2, 20)
    async with serving(socket_directory, *ranks) as settings:
        running = asyncio.create_task(serve(settings, shutdown))
        async with open_channel(settings.listen) as channel:
            await asyncio.wait_for(channel.channel_ready(), 20)
            client = await Client(engine_core_pb2_grpc.EngineCoreServiceStub(channel)).start()
            client.add(9, prompt_with(9, image), mm_features=[image])
            await client.until_finished(9)
        shutdown.set()
        await running

    assert client.tokens[9] == expected(9, 4)
    assert [rank.encoder.seen for rank in ranks] == [["a"], []]
    assert [rank.encoder.size for rank in ranks] == [2048, 2048]
