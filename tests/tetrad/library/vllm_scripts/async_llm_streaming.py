import asyncio

from tetrad import SamplingParams
from tetrad.engine.arg_utils import AsyncEngineArgs
from tetrad.sampling_params import RequestOutputKind
from tetrad.v1.engine.async_llm import AsyncLLM


async def stream_response(engine: AsyncLLM, prompt: str, request_id: str) -> None:
    sampling_params = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.95, seed=42, output_kind=RequestOutputKind.DELTA)
    async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=sampling_params):
        for completion in output.outputs:
            print(completion.text, end="", flush=True)
        if output.finished:
            print("\nGeneration complete!")


async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="meta-llama/Llama-3.2-1B-Instruct", enforce_eager=True))
    try:
        for i, prompt in enumerate(["The future of artificial intelligence is", "In a galaxy far, far away"], 1):
            await stream_response(engine, prompt, f"stream-example-{i}")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
