import asyncio

from tetrad import AsyncEngineArgs, AsyncLLMEngine, SamplingParams


async def main():
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="facebook/opt-125m"))
    params = SamplingParams(max_tokens=30, ignore_eos=True)

    async def generator_task():
        async for output in engine.generate("Write a story", params, request_id="request-1"):
            if output.finished:
                print("tokens:", len(output.outputs[0].token_ids))

    await engine.pause_generation(mode="keep")
    print("paused:", await engine.is_paused())
    task = asyncio.create_task(generator_task())
    await engine.resume_generation()
    await task
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
