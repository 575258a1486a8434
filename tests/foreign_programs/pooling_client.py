"""Embedding and reranking clients of several authors: `python pooling_client.py URL MODEL` writes their answers as JSON.

Run by test_pooling_clients.py with the Python that has them.
"""

import json
import sys

import cohere
import ollama
import openai
import requests
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

url, model = sys.argv[1:]
query, documents = "w1 w2", ["w3", "w1 w2", "w4 w5 w6"]

client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
langchain = OpenAIEmbeddings(model=model, base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False)
llama_index = OpenAILikeEmbedding(model_name=model, api_base=f"{url}/v1", api_key="none", embed_batch_size=2)
co = cohere.ClientV2(api_key="none", base_url=url)
reranked = co.rerank(model=model, query=query, documents=documents, top_n=2)
embedded = co.embed(model=model, texts=documents, input_type="search_document", embedding_types=["float", "ubinary"])
jina = requests.post(
    f"{url}/v1/rerank",
    json={"model": model, "query": query, "documents": [{"text": text} for text in documents], "return_documents": False},
    headers={"Authorization": "Bearer none"},
    timeout=60,
).json()

told = {
    "openai": [item.embedding for item in client.embeddings.create(model=model, input=documents).data],
    "ollama": ollama.Client(host=url).embed(model=model, input=documents).embeddings,
    "langchain": langchain.embed_documents(documents),
    "langchain_query": langchain.embed_query(query),
    "llama_index": llama_index.get_text_embedding_batch(documents),
    "llama_index_query": llama_index.get_query_embedding(query),
    "cohere": embedded.embeddings.float_,
    "cohere_bits": embedded.embeddings.ubinary,
    "cohere_tokens": embedded.meta.billed_units.input_tokens,
    "cohere_ranking": [[result.index, result.relevance_score] for result in reranked.results],
    "jina_ranking": [[result["index"], result["relevance_score"]] for result in jina["results"]],
    "jina_tokens": jina["usage"]["total_tokens"],
}
json.dump(told, sys.stdout)
