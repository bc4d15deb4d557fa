"""The command: how it starts, what it refuses, how it ends under load; and Inspect as a client."""

import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import openai
import pytest

from tests.helpers.serving import serving, wait_for, write

COMMAND = (sys.executable, "-m", "qkv", "serve")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("command"), max_position_embeddings=60_000)


@contextmanager
def started(path, *options):
    command = [*COMMAND, str(path), "--port", "0", "--json", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.slow
def test_sigterm_under_load_ends_with_0_and_stops_what_runs(path):
    with started(path, "--max-rows", "3", "--max-queue", "2") as (process, said):
        ends = []
        client = openai.OpenAI(base_url=said["address"], api_key="x", max_retries=0)

        def ask(n):
            try:
                found = client.completions.create(
                    model=said["model"], prompt="u:hello\na:", max_tokens=n, temperature=0, stream=True
                )
                ends.append(sum(bool(piece.choices and piece.choices[0].text) for piece in found))
            except openai.OpenAIError as error:
                ends.append(str(error))

        threads = [threading.Thread(target=ask, args=(59_000,)) for _ in range(5)]
        for thread in threads:
            thread.start()
        address = said["address"].replace("/v1", "/metrics")
        wait_for(lambda: "qkv_running_rows 3" in httpx.get(address).text)
        wait_for(lambda: "qkv_waiting_requests 2" in httpx.get(address).text)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=40)
        for thread in threads:
            thread.join(10)
        assert (process.returncode, err) == (0, "")
        assert ends == ["the server is ending"] * 5 or all("the server is ending" in str(end) for end in ends)


@pytest.mark.slow
def test_ctrl_c_ends_it_and_a_second_server_takes_another_port(path):
    with started(path) as (process, said):
        port = said["address"].rsplit(":", 1)[1].split("/")[0]
        taken = subprocess.run([*COMMAND, str(path), "--port", port], capture_output=True, text=True, timeout=60)
        assert taken.returncode == 2
        assert taken.stderr.startswith(f"qkv: --port: got {port}, wanted one that is free")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.slow
def test_other_machines_need_a_token(path, tmp_path):
    refused = subprocess.run([*COMMAND, str(path), "--host", "0.0.0.0"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert refused.stderr.startswith("qkv: --host: got 0.0.0.0, which other machines reach, wanted a token. Hint:")
    token = tmp_path / "token"
    token.write_text("short\n")
    command = [*COMMAND, str(path), "--token-file", str(token)]
    short = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert short.stderr.startswith("qkv: --token-file: got 5 characters, wanted one word of 16 characters")
    token.write_text("0123456789abcdef\n")
    with started(path, "--host", "0.0.0.0", "--token-file", str(token)) as (process, said):
        try:
            address = f"http://127.0.0.1:{said['address'].rsplit(':', 1)[1]}"
            assert httpx.get(f"{address}/models").status_code == 401
            bearer = {"authorization": "Bearer 0123456789abcdef"}
            assert httpx.get(f"{address}/models", headers=bearer).status_code == 200
            assert httpx.get(f"{address}/models", headers=bearer | {"host": "evil.example"}).status_code == 421
        finally:
            process.terminate()
            assert process.wait(20) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_inspect_asks_it_with_tools_and_without(path, tmp_path, monkeypatch):
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes

    with serving(path) as (client, server):
        monkeypatch.setenv("TINY_API_KEY", "none")
        monkeypatch.setenv("TINY_BASE_URL", str(client.base_url))
        model = get_model("openai-api/tiny/tiny", config=GenerateConfig(max_tokens=9, temperature=0.0, seed=3))
        task = inspect_ai.Task([Sample(input="hello", target="x")], scorer=includes())
        (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none")
        assert log.status == "success", log.error
        assert log.samples
        said = log.samples[0].output.completion
        own = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=9, temperature=0
        )
        assert said == own.choices[0].message.content
        assert server.engine.figures.outcomes["answered"] == 2
