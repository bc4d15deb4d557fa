"""`Engine`: answers are those of `generate`, whatever else is in the batch; rows and prefixes come and go."""

import threading

import pytest
import torch

import qkv
from qkv.runtime import Row
from qkv.serving.engine import CHUNK, Engine, Job
from qkv.serving.limits import Limits, Refused
from tests.helpers.runtime_files import CONTEXT
from tests.helpers.serving import wait_for, write
from tests.helpers.small_checkpoint import write as write_words


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return qkv.runtime.load(write(tmp_path_factory.mktemp("engine")), threads=1)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    return qkv.runtime.load(write(tmp_path_factory.mktemp("engine"), "gemma3"), threads=1)


class Client:
    """A request and what has been heard of it."""

    def __init__(self, engine, prompt, new=17, seed=None, told=True, **options):
        self.engine, self.events, self.over = engine, [], threading.Event()
        generator = torch.Generator().manual_seed(seed) if seed is not None else None
        row = Row(engine.model, new, generator=generator, **options)
        self.job = Job(list(prompt), row, told=told, hear=self.hear)

    def ask(self):
        self.engine.submit(self.job)
        return self

    def hear(self, event):
        self.events.append(event)
        if event.last:
            self.over.set()

    def answer(self):
        assert self.over.wait(30)
        if self.events[-1].error is not None:
            raise self.events[-1].error
        return self.job.row.found


@pytest.fixture
def engine_of():
    """Engines that end with the test."""
    engines = []

    def make(model, **limits):
        engines.append(Engine(model, Limits(**limits)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
        assert not engine._thread.is_alive()


def prompt(seed, n):
    return torch.randint(3, 99, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


ASKED = [
    {"temperature": 0.0, "new": 23},
    {"temperature": 1.3, "seed": 5, "new": 31, "logprobs": 3},
    {"temperature": 0.9, "seed": 7, "top_p": 0.8, "top_k": 19, "new": 11},
    {"temperature": 1.0, "seed": 5, "stop": ["e", "xyz"], "new": 43},
]


@pytest.mark.parametrize("name", ["model", "windowed"])
def test_up_to_three_rows_have_the_bits_of_generate(name, request, engine_of):
    """A row that joins or leaves changes nothing for the others; the fourth request waits for one."""
    model = request.getfixturevalue(name)
    engine = engine_of(model, rows=3)
    prompts = [prompt(at, n) for at, n in enumerate((5, 2 * CHUNK + 3, 37, CHUNK + 1))]
    clients = []
    for given, options in zip(prompts, ASKED, strict=True):
        clients.append(Client(engine, given, **options).ask())
        wait_for(lambda own=clients[-1]: own.events)
    for client, given, options in zip(clients, prompts, ASKED, strict=True):
        more = {key: value for key, value in options.items() if key != "new"}
        wanted = model.generate(model.tokenizer.decode(given), options["new"], **more)
        assert model.tokenizer.encode(model.tokenizer.decode(given)) == given
        assert client.answer() == wanted
        assert "".join(event.text for event in client.events) == wanted.text
    wait_for(lambda: engine.cache is None)


def test_more_rows_have_its_tokens_and_nearly_its_figures(model, engine_of):
    """More than three tokens of one step are summed in another order."""
    engine = engine_of(model, rows=7)
    prompts = [prompt(at, 7 + 11 * at) for at in range(13)]
    clients = [Client(engine, given, new=29, told=False).ask() for given in prompts]
    for client, given in zip(clients, prompts, strict=True):
        found, wanted = client.answer(), model.generate(given, 29)
        assert found.tokens == wanted.tokens
        assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
        assert len(client.events) == 1
    assert engine.figures.outcomes["answered"] == 13


@pytest.mark.parametrize("name", ["model", "windowed"])
def test_a_prompt_among_many_answers_is_a_row_of_their_step(name, request, engine_of, monkeypatch):
    """Also one that is left before its end, whose beginning is kept; the others lose nothing."""
    model = request.getfixturevalue(name)
    engine, gate = engine_of(model, rows=7), threading.Event()
    fill, add_part = engine._fill, engine._add_part
    monkeypatch.setattr(engine, "_fill", lambda: gate.wait(30) and fill())  # until all are there
    prompts = [prompt(at, 5 + at) for at in range(4)]
    many = [Client(engine, given, new=113).ask() for given in prompts]
    late = Client(engine, prompt(11, 2 * CHUNK + 9), new=19).ask()
    left = Client(engine, prompt(12, 3 * CHUNK), new=7).ask()

    def leaving(job, *part):
        if job is left.job:
            engine.leave(job)
        return add_part(job, *part)

    monkeypatch.setattr(engine, "_add_part", leaving)
    gate.set()
    for client, new in [(late, 19), *((each, 113) for each in many)]:
        assert client.answer().tokens == model.generate(client.job.tokens, new).tokens
    assert engine.figures.outcomes["left"] == 1
    assert engine.figures.steps_with_prompt == 4  # two chunks and the rest, and one that was left
    again = Client(engine, left.job.tokens, new=7).ask()
    assert again.answer().tokens == model.generate(left.job.tokens, 7).tokens
    assert again.job.cached == CHUNK


@pytest.mark.slow
def test_a_model_that_runs_in_transformers_is_served_too(tmp_path, engine_of):
    model = qkv.runtime.load(write_words(tmp_path, max_position_embeddings=CONTEXT), backend="transformers")
    engine = engine_of(model)
    prompts = [[each % 17 + 3 for each in prompt(1, 41) + prompt(at, 7)] for at in range(3)]
    clients = [Client(engine, given, new=5).ask() for given in prompts]
    for client, given in zip(clients, prompts, strict=True):
        assert client.answer().tokens == model.generate(given, 5).tokens
    assert engine.prefixes.hits == 2


@pytest.mark.parametrize("name", ["model", "windowed"])
def test_a_shared_prefix_is_computed_once(name, request, engine_of):
    """Also by the second of two that ask at the same time: it waits for the first."""
    model = request.getfixturevalue(name)
    engine = engine_of(model)
    shared = prompt(0, 101)
    prompts = [shared + prompt(at, 13) for at in (1, 2)]
    with engine._changed:  # both are there before the first step
        clients = [Client(engine, given).ask() for given in prompts]
    for client, given in zip(clients, prompts, strict=True):
        assert client.answer() == model.generate(model.tokenizer.decode(given), 17)
    if name == "model":
        assert [client.job.cached for client in clients] == [0, 101]
        assert engine.figures.prompt_tokens == 101 + 2 * 13
    assert Client(engine, prompts[0]).ask().answer() == model.generate(model.tokenizer.decode(prompts[0]), 17)


def test_the_next_turn_of_a_chat_begins_where_the_last_one_ended(model, engine_of):
    engine = engine_of(model)
    first = Client(engine, prompt(0, 47), new=19).ask()
    turn = prompt(0, 47) + first.answer().tokens + prompt(1, 11)
    second = Client(engine, turn).ask()
    assert second.answer().tokens == model.generate(turn, 17).tokens
    assert second.job.cached == 47 + 18


def test_kept_prefixes_are_bounded_and_the_least_used_goes_first(model, engine_of):
    page = model.cache()
    model.step([prompt(0, 64)], page)
    engine = engine_of(model, cache_bytes=3 * page.nbytes)
    for at in range(7):
        Client(engine, prompt(at, 51), new=2).ask().answer()
        Client(engine, prompt(0, 51), new=2).ask().answer()
        wait_for(lambda: engine.cache is None)
        assert engine.prefixes.nbytes <= 3 * page.nbytes
    again = Client(engine, prompt(0, 51), new=2).ask()
    again.answer()
    gone = Client(engine, prompt(1, 51), new=2).ask()
    gone.answer()
    assert (again.job.cached, gone.job.cached) == (47, 0)
    none = engine_of(model, cache_bytes=0)
    for _ in range(2):
        client = Client(none, prompt(0, 51), new=2).ask()
        client.answer()
        assert client.job.cached == 0


def test_a_client_that_goes_away_frees_its_row(model, engine_of):
    engine = engine_of(model, rows=2, queue=3)
    clients = [Client(engine, prompt(at, 41), new=150).ask() for at in range(5)]
    wait_for(lambda: len(clients[0].events) > 3)
    for client in (clients[0], clients[1], clients[4]):
        engine.leave(client.job)
    wait_for(lambda: clients[3].events)  # who waited for the row
    assert clients[0].job not in engine.running
    for at in (2, 3):
        assert clients[at].answer().tokens == model.generate(prompt(at, 41), 150).tokens
    assert engine.figures.outcomes["left"] == 3
    assert not clients[4].events
    again = Client(engine, prompt(0, 41), new=3).ask()
    again.answer()
    assert again.job.cached == 37, "what was computed for one who left is kept"


def test_a_full_queue_refuses(model, engine_of):
    engine = engine_of(model, rows=1, queue=2)
    with engine._changed:
        clients = [Client(engine, prompt(at, 5), new=7).ask() for at in range(3)]
        with pytest.raises(Refused, match=r"^1 answers .* 2 requests wait") as caught:
            Client(engine, prompt(3, 5)).ask()
    assert (caught.value.status, caught.value.headers) == (429, {"retry-after": "1"})
    assert [len(client.answer().tokens) for client in clients] == [7, 7, 7]


def test_what_takes_too_long_is_an_error(model, engine_of):
    engine = engine_of(model, rows=1, seconds=0.004)
    clients = [Client(engine, prompt(at, 5), new=200).ask() for at in range(3)]
    for client in clients:
        with pytest.raises(Refused, match=r"longer than 0\.004 s") as caught:
            client.answer()
        assert caught.value.status == 504
    wait_for(lambda: engine.cache is None)


def test_at_the_end_answers_have_their_grace(model, engine_of):
    engine = engine_of(model, rows=2, grace=20.0)
    clients = [Client(engine, prompt(at, 5), new=203).ask() for at in range(3)]
    wait_for(lambda: clients[1].events)
    engine.end()
    assert [len(client.answer().tokens) for client in clients[:2]] == [203, 203]
    with pytest.raises(Refused, match="ending"):
        clients[2].answer()
    with pytest.raises(Refused, match="ending"):
        Client(engine, prompt(3, 5)).ask()


def test_after_the_grace_they_are_stopped(model, engine_of):
    engine = engine_of(model, grace=0.002)
    client = Client(engine, prompt(0, 5), new=200).ask()
    wait_for(lambda: client.events)
    engine.end()
    with pytest.raises(Refused, match="ending"):
        client.answer()
    assert 0 < len(client.job.row.found.tokens) < 200


def test_a_step_that_fails_ends_its_requests_and_not_the_engine(model, engine_of, monkeypatch):
    engine = engine_of(model)
    client = Client(engine, prompt(0, 5), new=200).ask()
    wait_for(lambda: client.events)

    def full(*_, **__):
        raise MemoryError("cache: no memory for 3 more pages")

    with monkeypatch.context() as patched:
        patched.setattr(model, "step", full)
        with pytest.raises(Refused, match="MemoryError") as caught:
            client.answer()
        assert caught.value.status == 500
    assert Client(engine, prompt(0, 5)).ask().answer().tokens == model.generate(prompt(0, 5), 17).tokens


def test_a_prompt_runs_between_the_steps_of_others(model, engine_of):
    engine = engine_of(model)
    one = Client(engine, prompt(0, 5), new=100).ask()
    wait_for(lambda: len(one.events) > 2)
    with engine._changed:
        before = len(one.events)
        other = Client(engine, prompt(1, CONTEXT - 20), new=2).ask()
    other.answer()
    assert len(one.events) - before >= (CONTEXT - 20) // CHUNK
    engine.leave(one.job)
