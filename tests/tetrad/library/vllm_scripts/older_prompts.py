from tetrad import LLM, SamplingParams

llm = LLM("facebook/opt-125m", None, "auto", False, True, task="generate", disable_async_output_proc=True)
params = SamplingParams(max_tokens=3, ignore_eos=True)
outputs = llm.generate(prompt_token_ids=[[504, 3575], [282, 4649, 314]], sampling_params=params)
outputs += llm.generate(None, params, [504, 3575], False)
outputs += llm.generate(["The capital"], params, [[504, 3575]])
outputs += llm.generate(inputs=["The capital", {"prompt": "of France"}], sampling_params=params)
for output in outputs:
    print(len(output.prompt_token_ids), repr(output.prompt), len(output.outputs[0].token_ids))
try:
    llm.generate(None, params)
except ValueError as error:
    print("ValueError:", error)
print(llm.llm_engine.get_model_config().max_model_len, next(llm.request_counter))
