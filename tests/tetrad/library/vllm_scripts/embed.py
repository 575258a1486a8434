from tetrad import LLM

llm = LLM(model="intfloat/e5-small", runner="pooling", enforce_eager=True)
outputs = llm.embed(["Hello, my name is", "The capital of France is"])
for output in outputs:
    print(len(output.outputs.embedding), len(output.prompt_token_ids))
(output,) = llm.encode("Hello, my name is", pooling_task="token_embed")
print(len(output.outputs.data))
(output,) = llm.score("What is the capital of France?", "The capital of France is Paris.")
print(f"score: {output.outputs.score:.3f}")
try:
    llm.generate("Hello, my name is")
except ValueError as error:
    print("ValueError:", error)
