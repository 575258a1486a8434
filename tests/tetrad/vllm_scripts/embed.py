from tetrad import LLM

try:
    llm = LLM(model="intfloat/e5-small", runner="pooling", enforce_eager=True)
except NotImplementedError as error:
    print("runner:", error)
llm = LLM(model="intfloat/e5-small", enforce_eager=True)
for name, arguments in {"embed": (["Hello"],), "classify": (["Hello"],), "encode": (["Hello"],), "score": ("a", ["b"])}.items():
    try:
        getattr(llm, name)(*arguments)
    except NotImplementedError as error:
        print(error)
