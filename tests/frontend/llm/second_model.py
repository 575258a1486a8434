"""A second model of a running frontend: the requests that load it, use it and list it."""

LOAD, UNLOAD = "/v1/load_model", "/v1/unload_model"
OTHER = "The other model writes this."


def entry(second, *names, **changes):
    """Return the body that loads the second model."""
    tokenizer, engine = second
    targets = {"tokenizer_targets": [tokenizer.target], "engine_targets": [engine.target]}
    return {"served_model_names": names or ("other",), **targets, "engine_admin_targets": [engine.target], **changes}


async def loaded(frontend, second, *names, **changes):
    answer = await frontend.http.post(LOAD, json=entry(second, *names, **changes))
    assert answer.status_code == 200, answer.text
    return answer.text


async def completed(frontend, model):
    body = {"prompt": "hi", "max_tokens": 9} | ({"model": model} if model else {})
    answer = await frontend.http.post("/v1/completions", json=body)
    return answer.json()["choices"][0]["text"]


async def listed(frontend):
    return [each["id"] for each in (await frontend.http.get("/v1/models")).json()["data"]]
