"""One message per step and hop, whatever the number of requests: counted at 64 concurrent ones."""

import asyncio
import contextlib

from tetrad import EngineArgs, SamplingParams
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.rpc.channel import open_channel
from tetrad.stack.local_stack import LocalStack
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc

NUM_REQUESTS, NUM_TOKENS = 64, 50


async def consume(llm: AsyncLLM, number: int) -> int:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    last = None
    async for output in llm.generate({"prompt_token_ids": [1000 + number] * 20}, params, f"r{number}"):
        last = output
    return len(last.outputs[0].token_ids)


async def test_64_requests_cost_one_message_per_step_on_each_hop(smollm2):
    async with contextlib.AsyncExitStack() as stack:
        services = LocalStack(EngineArgs(model=str(smollm2), device="sim").stack_settings())
        stack.push_async_callback(services.close)
        await services.start(timeout_s=60)
        llm = await stack.enter_async_context(await AsyncLLM.connect(services.frontend_settings))
        counts = await asyncio.gather(*(consume(llm, number) for number in range(NUM_REQUESTS)))
        channel = await stack.enter_async_context(open_channel(services.engine_admin_targets[0]))
        admin = engine_core_pb2_grpc.EngineCoreAdminServiceStub(channel)
        load = (await admin.GetLoad(engine_core_pb2.GetLoadRequest())).load

    assert counts == [NUM_TOKENS] * NUM_REQUESTS
    assert NUM_TOKENS <= load.num_output_messages <= load.stats.step_counter
    assert llm.backends.detokenizer.num_messages <= load.num_output_messages
    assert load.stats.step_counter < NUM_REQUESTS * NUM_TOKENS / 10
