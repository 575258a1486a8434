from tetrad import LLM, SamplingParams
from tetrad.sampling_params import GuidedDecodingParams

llm = LLM(model="Qwen/Qwen2.5-3B-Instruct", guided_decoding_backend="xgrammar")
guided = GuidedDecodingParams(choice=["Positive", "Negative"], backend="outlines")
outputs = llm.generate("Is it?", SamplingParams(guided_decoding=guided, max_tokens=20))
print("guided_decoding:", outputs[0].outputs[0].text)
outputs = llm.generate("Is it?", SamplingParams(max_tokens=20), guided_options_request={"guided_choice": ["Yes", "No"]})
print("guided_options_request:", outputs[0].outputs[0].text)
