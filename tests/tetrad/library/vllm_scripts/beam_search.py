from tetrad import LLM
from tetrad.inputs import TokensPrompt
from tetrad.sampling_params import BeamSearchParams

llm = LLM(model="facebook/opt-125m")
params = BeamSearchParams(beam_width=3, max_tokens=5)
prompts = [{"prompt": "The president of the United States is"}, TokensPrompt(prompt_token_ids=[504, 3575, 282])]
for output in llm.beam_search(prompts, params):
    for sequence in output.sequences:
        print(len(sequence.tokens), sequence.cum_logprob, sequence.text)
