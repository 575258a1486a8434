from tetrad import LLM, SamplingParams
from tetrad.distributed import cleanup_dist_env_and_memory

prefix = "You are an expert school principal, skilled in effectively managing faculty and staff. " * 4
generating_prompts = [prefix + prompt for prompt in ("Hello, my name is", "The capital of France is", "The future of AI is")]
sampling_params = SamplingParams(temperature=0.0)


def main():
    regular_llm = LLM(model="facebook/opt-125m", gpu_memory_utilization=0.4)
    regular = [output.outputs[0].text for output in regular_llm.generate(generating_prompts, sampling_params)]
    del regular_llm
    cleanup_dist_env_and_memory()

    prefix_cached_llm = LLM(model="facebook/opt-125m", enable_prefix_caching=True, gpu_memory_utilization=0.4)
    prefix_cached_llm.generate(generating_prompts[0], sampling_params)
    outputs = prefix_cached_llm.generate(generating_prompts, sampling_params)
    print("same:", regular == [output.outputs[0].text for output in outputs])
    print("cached:", [output.num_cached_tokens > 0 for output in outputs])


if __name__ == "__main__":
    main()
