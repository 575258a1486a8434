"""clients/python, as docs/clients.md shows it, against a running stack."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor

import grpc

from tests.documents import ROOT, Page
from tetrad.v1 import inference_pb2, inference_pb2_grpc

CLIENT = ROOT / "clients/python"
PAGE = Page.of("docs/clients.md")


def run(source: str) -> str:
    """Run a program that finds the client's sources and nothing of ours."""
    program = f"import sys; sys.path.insert(0, {str(CLIENT)!r})\n{source}"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_program_of_the_page_streams_and_tells_what_is_wrong(sim_server):
    said = run(PAGE.block("CallFailed", language="python").replace("127.0.0.1:50050", sim_server.grpc_target))

    assert len(said) > 32
    assert said.endswith("-1.0. StatusCode.INVALID_ARGUMENT INVALID_ARGUMENT temperature None\n")


def test_a_server_tells_its_contract(sim_server):
    said = run(PAGE.block("reflection", language="python").replace("127.0.0.1:50050", sim_server.grpc_target))

    assert {"tetrad.v1.InferenceService", "grpc.health.v1.Health"} <= set(ast.literal_eval(said))


def test_leaving_a_loop_ends_the_request(sim_server):
    run(f"""
from tetrad_client import Client
with Client({sim_server.grpc_target!r}) as client:
    for delta in client.generate([1, 2, 3], max_tokens=8000, ignore_eos=True):
        break
""")

    sim_server.wait_idle(10)


def test_all_outputs_stop_strings_and_models(sim_server):
    said = run(f"""
from tetrad_client import Client
with Client({sim_server.grpc_target!r}) as client:
    deltas = list(client.generate("x", n=2, max_tokens=5, text_options={{"stop": ["never"]}}))
    print(sorted({{delta.index for delta in deltas}}), sum(len(delta.token_ids) for delta in deltas), client.list_models())
""")

    assert said == "[0, 1] 10 ['smollm2-135m-instruct']\n"


def test_a_conversation_takes_text_options(sim_server):
    said = run(f"""
from tetrad_client import Client
with Client({sim_server.grpc_target!r}) as client:
    messages = [{{"role": "user", "content": "x"}}]
    deltas = list(client.chat(messages, max_tokens=5, ignore_eos=True, text_options={{"detokenize": False}}))
    print(sum(len(delta.token_ids) for delta in deltas), repr("".join(delta.content for delta in deltas)))
""")

    assert said == "5 ''\n"


class LargeAnswers(inference_pb2_grpc.InferenceServiceServicer):
    """Answers with a message beyond gRPC's own limit of 4 MiB, as a server may with max_message_bytes."""

    def Embed(self, request, context):
        return inference_pb2.EmbedResponse(embeddings=[inference_pb2.Embedding(values=bytes(5 << 18))])


def test_an_answer_may_be_as_large_as_the_server_s_limit():
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.max_send_message_length", 32 << 20)])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(LargeAnswers(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        said = run(f"""
from tetrad_client import Client
with Client("127.0.0.1:{port}") as client:
    [values] = client.embed(["x"])
    print(len(values))
""")
    finally:
        server.stop(None)

    assert said == f"{5 << 18}\n"


def test_the_package_installs_by_itself(tmp_path):
    assert "pip install ./clients/python\n" in PAGE.text
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "out"),
        str(tmp_path / "src"),
    ]
    subprocess.run(["cp", "-r", str(CLIENT), str(tmp_path / "src")], check=True)

    subprocess.run(command, check=True, capture_output=True)

    names = zipfile.ZipFile(next((tmp_path / "out").glob("*.whl"))).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"tetrad_client"}
    assert {"tetrad_client/v1/inference_pb2_grpc.py", "tetrad_client/py.typed"} <= set(names)


def test_the_package_asks_for_what_its_stubs_need():
    needs = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]["dependencies"]
    stubs = CLIENT / "tetrad_client/v1"
    grpc_version = re.search(r"GRPC_GENERATED_VERSION = '(.+)'", (stubs / "inference_pb2_grpc.py").read_text())
    protobuf_version = re.search(r"# Protobuf Python Version: (.+)", (stubs / "inference_pb2.py").read_text())

    assert {f"grpcio>={grpc_version[1]}", f"protobuf>={protobuf_version[1]}"} <= set(needs)


def test_the_stubs_are_what_the_generator_writes(tmp_path):
    source = "import sys; sys.path.insert(0, 'tools'); import client_stubs, pathlib, json"
    source += f"; print(json.dumps(client_stubs.render(pathlib.Path({str(tmp_path)!r}))))"

    ran = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True)

    committed = {path.name: path.read_text() for path in (CLIENT / "tetrad_client/v1").glob("*_pb2*")}
    assert ast.literal_eval(ran.stdout) == committed
