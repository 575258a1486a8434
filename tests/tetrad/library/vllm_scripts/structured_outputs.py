from enum import Enum

from pydantic import BaseModel

from tetrad import LLM, SamplingParams
from tetrad.sampling_params import StructuredOutputsParams

MAX_TOKENS = 60


class CarType(str, Enum):
    SEDAN = "SEDAN"
    SUV = "SUV"


class CarDescription(BaseModel):
    brand: str
    car_type: CarType


GRAMMAR = """
root ::= select_statement
select_statement ::= "SELECT " column " from " table
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
"""

KINDS = {
    "choice": StructuredOutputsParams(choice=["Positive", "Negative"]),
    "regex": StructuredOutputsParams(regex=r"\w{1,5}@\w{1,5}\.com\n"),
    "json": StructuredOutputsParams(json=CarDescription.model_json_schema()),
    "grammar": StructuredOutputsParams(grammar=GRAMMAR),
}


def main():
    llm = LLM(model="Qwen/Qwen2.5-3B-Instruct", max_model_len=100)
    for kind, constraint in KINDS.items():
        stop = ["\n"] if kind == "regex" else None
        sampling_params = SamplingParams(structured_outputs=constraint, stop=stop, max_tokens=MAX_TOKENS)
        outputs = llm.generate(prompts="Answer, please", sampling_params=sampling_params)
        print(f"{kind}: {outputs[0].outputs[0].text}")


if __name__ == "__main__":
    main()
