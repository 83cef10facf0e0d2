"""OpenAI's own client against a real server, with a stand-in engine behind it."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn
from prometheus_client import CollectorRegistry

from attendant.service.engine.tasks import Finished, Generate, Generated, Hypothesis, NewTokens, Options
from attendant.service.errors import DeadlineError, NotReadyError, QueueFullError
from attendant.service.http.app import create_app
from attendant.service.requests.planning import input_seed
from attendant.service.settings import Settings
from tests.support.fake_engine import FakeEngine, make_bundle

LIMIT = 20
PATIENCE = 20.0  # seconds, for what must come


@dataclass
class Service:
    engine: FakeEngine
    url: str
    registry: CollectorRegistry
    client: openai.OpenAI

    def create(self, prompt: Any = "cat", **options: Any) -> Any:
        return self.client.completions.create(model="fake", prompt=prompt, **options)

    def outcomes(self, endpoint: str, outcome: str) -> float:
        """Counted of the served model and of none."""
        labels = [{"model": model, "endpoint": endpoint, "outcome": outcome} for model in ("fake", "")]
        return sum(self.registry.get_sample_value("attendant_requests_total", each) or 0.0 for each in labels)


@pytest.fixture(scope="module")
def bundle_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundle")


@pytest.fixture(scope="module")
def serve(bundle_directory: Path) -> Iterator[Callable[..., Service]]:
    with ExitStack() as stack:
        yield lambda **settings: _serve(stack, bundle_directory, Settings(**settings))


def _serve(stack: ExitStack, directory: Path, settings: Settings) -> Service:
    engine = FakeEngine(make_bundle(directory, target=LIMIT))
    engine.start()
    stack.callback(engine.close)
    registry = CollectorRegistry()
    app = create_app(settings, engine, registry)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    stack.callback(thread.join)
    stack.callback(lambda: setattr(server, "should_exit", True))
    wait_for(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    key = settings.api_keys[0] if settings.api_keys else "none"
    client = stack.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0))
    return Service(engine, url, registry, client)


@pytest.fixture(scope="module")
def shared(serve: Callable[..., Service]) -> Service:
    return serve()


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    yield shared
    shared.engine.failure = shared.engine.refusal = None
    shared.engine.resume()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.005)


def generated(engine: FakeEngine, text: str, **options: Any) -> Hypothesis:
    """The engine's own best answer, without HTTP."""
    heard: queue.SimpleQueue[NewTokens | Finished] = queue.SimpleQueue()
    task = Generate(source=engine.source_tokenizer.encode(text), options=Options(**{"max_length": LIMIT, **options}))
    engine.submit([task], heard.put)
    event = heard.get(timeout=PATIENCE)
    assert isinstance(event, Finished)
    assert isinstance(event.answer, Generated)
    return event.answer.hypotheses[0]


def joined(chunks: Any) -> dict[int, str]:
    """The text of each streamed choice."""
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts


def test_the_model_is_listed_and_found_by_its_name(service: Service) -> None:
    (listed,) = service.client.models.list().data
    assert listed.id == "fake"
    assert listed.object == "model"
    assert service.client.models.retrieve("fake") == listed


def test_a_model_that_is_not_served_is_not_found(service: Service) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        service.client.models.retrieve("gpt/other")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError, match="There is no model 'other' here; there is 'fake'"):
        service.client.completions.create(model="other", prompt="cat")


def test_a_completion_is_what_the_engine_generates(service: Service) -> None:
    answer = service.create("cat")
    expected = generated(service.engine, "cat")
    (choice,) = answer.choices
    assert choice.text == service.engine.target_tokenizer.decode(expected.ids)
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (answer.object, answer.model) == ("text_completion", "fake")
    assert answer.id.startswith("cmpl-")


def test_usage_counts_the_prompt_and_all_that_was_decoded(service: Service) -> None:
    usage = service.create(["cat", "horse"]).usage
    decoded = sum(len(generated(service.engine, text).logprobs) for text in ("cat", "horse"))
    assert (usage.prompt_tokens, usage.completion_tokens) == (8, decoded)
    assert usage.total_tokens == 8 + decoded


def test_choices_keep_the_order_of_the_prompts(service: Service) -> None:
    prompts = ["cat", "a", "horse", "cow"]
    answer = service.create(prompts, temperature=0.8, seed=3, n=2)
    assert [choice.index for choice in answer.choices] == list(range(8))
    for place, choice in enumerate(answer.choices):
        options = {"temperature": 0.8, "seed": input_seed(3, place)}
        expected = generated(service.engine, prompts[place // 2], **options)
        assert choice.text == service.engine.target_tokenizer.decode(expected.ids)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0, "seed": 1, "top_p": 1.0},
        {"temperature": 1.0, "seed": 5, "n": 3},
        {"best_of": 4},
        {"extra_body": {"beam_size": 4, "length_penalty": 0.5}},
        {"max_tokens": 2},
        {"logprobs": 2},
    ],
)
def test_the_streamed_choices_are_the_whole_ones(options: dict[str, Any], service: Service) -> None:
    prompts = ["cat", "horse"]
    whole = service.create(prompts, **options)
    chunks = list(service.create(prompts, stream=True, stream_options={"include_usage": True}, **options))
    assert joined(chunks) == {choice.index: choice.text for choice in whole.choices}
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_comes_token_by_token(service: Service) -> None:
    service.engine.pause_after = 2
    with service.create("horse", stream=True) as stream:
        first, second = next(stream), next(stream)
        service.engine.resume()
        assert first.choices[0].finish_reason is None
        assert (
            first.choices[0].text + second.choices[0].text + joined(stream)[0]
            == service.create("horse").choices[0].text
        )


def test_without_include_usage_no_chunk_tells_of_it(service: Service) -> None:
    assert all(chunk.usage is None and chunk.choices for chunk in service.create(stream=True))


def test_several_choices_without_a_temperature_are_a_beams_best(service: Service) -> None:
    answer = service.create("cat", n=3)
    assert len(answer.choices) == 3
    (task,) = (task for task in service.engine.submitted[-1:] if isinstance(task, Generate))
    assert (task.options.beam_size, task.options.num_hypotheses) == (3, 3)
    service.create("cat", n=2, extra_body={"beam_size": 5, "length_penalty": 0.3, "early_stopping": False})
    (task,) = (task for task in service.engine.submitted[-1:] if isinstance(task, Generate))
    assert (task.options.beam_size, task.options.num_hypotheses, task.options.length_penalty) == (5, 2, 0.3)
    assert task.options.early_stopping is False


def test_the_best_of_several_samples_has_the_highest_score(service: Service) -> None:
    samples = [generated(service.engine, "cat", temperature=1.5, seed=input_seed(9, k)) for k in range(5)]
    samples.sort(key=lambda hypothesis: -hypothesis.score)
    answer = service.create("cat", temperature=1.5, seed=9, n=2, best_of=5)
    assert [choice.text for choice in answer.choices] == [
        service.engine.target_tokenizer.decode(h.ids) for h in samples[:2]
    ]
    assert answer.usage.completion_tokens == sum(len(h.logprobs) for h in samples)


def test_a_seed_reaches_the_engine_and_without_one_every_request_draws_its_own(service: Service) -> None:
    service.engine.submitted.clear()
    for seed in (7, 7, -1, None, None):
        service.create(["horse", "cat"], temperature=1.0, seed=seed)
    seeds = [task.options.seed for task in service.engine.submitted]  # type: ignore[union-attr]
    assert seeds[:4] == [7, input_seed(7, 1)] * 2
    assert seeds[4] == 2**63 - 1
    assert len(set(seeds[6:])) == 4


def test_max_tokens_ends_a_choice(service: Service) -> None:
    choice = service.create("horse", max_tokens=2).choices[0]
    assert choice.finish_reason == "length"
    assert len(choice.text.split()) == 2
    assert service.create("horse", max_tokens=10**6).choices[0] == service.create("horse").choices[0]


def test_logprobs_are_those_of_the_tokens_in_the_text(service: Service) -> None:
    choice = service.create("horse", logprobs=0).choices[0]
    told, expected = choice.logprobs, generated(service.engine, "horse")
    assert told.tokens == choice.text.split()
    assert told.token_logprobs == pytest.approx(expected.logprobs[: len(told.tokens)])
    assert told.top_logprobs is None
    assert [choice.text[offset:].split()[0] for offset in told.text_offset] == told.tokens


@pytest.mark.parametrize("options", [{}, {"temperature": 2.0, "seed": 4}])
def test_the_most_probable_tokens_are_told_beside_the_one_that_came(options: dict[str, Any], service: Service) -> None:
    told = service.create("horse", logprobs=3, **options).choices[0].logprobs
    assert len(told.top_logprobs) == len(told.tokens) > 0
    for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[token] == pytest.approx(logprob)
        assert list(top.values())[:3] == sorted(top.values(), reverse=True)[:3]
        assert len(top) in (3, 4)
        assert len(top) == 3 or min(top, key=lambda name: top[name]) == token


def test_streamed_logprobs_are_the_whole_ones(service: Service) -> None:
    whole = service.create("horse", logprobs=2).choices[0].logprobs
    parts = [chunk.choices[0].logprobs for chunk in service.create("horse", logprobs=2, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(whole, name)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": [464, 3797]}, "prompt[0]", "prompt[0] takes a text, not 464"),
    ({"prompt": [[464, 3797]]}, "prompt[0]", "prompt[0] takes a text, not [464, 3797]"),
    ({"prompt": []}, "prompt", "at least one"),
    ({"prompt": ""}, "prompt", "is empty"),
    ({"prompt": ["cat", "x" * 17]}, "prompt[1]", "at most 16"),
    ({"prompt": "CAT"}, "prompt", "vocabulary lacks"),
    ({"prompt": ["a"] * 257}, "prompt", "at most 256"),
    ({"n": 0}, "n", "from 1"),
    ({"n": 33}, "n", "from 1 to 32"),
    ({"best_of": 10_000}, "best_of", "from 1 to 32"),
    ({"n": 3, "best_of": 2}, "best_of", "at least n"),
    ({"n": 2, "extra_body": {"beam_size": 1}}, "n", "at most beam_size"),
    ({"best_of": 3, "extra_body": {"beam_size": 4}}, "best_of", "leave out best_of or beam_size"),
    ({"temperature": 1.0, "extra_body": {"beam_size": 4}}, "beam_size", "sampling keeps no beam"),
    ({"temperature": 0.001}, "temperature", "from 0.01"),
    ({"temperature": -1}, "temperature", "from 0.01"),
    ({"top_p": 0.5}, "top_p", "give a temperature"),
    ({"top_p": 0.0, "temperature": 1.0}, "top_p", "above 0"),
    ({"max_tokens": 0}, "max_tokens", "from 1"),
    ({"logprobs": 6}, "logprobs", "from 0 to 5"),
    ({"echo": True}, "echo", "not offered"),
    ({"suffix": "x"}, "suffix", "not offered"),
    ({"stop": "\n"}, "stop", "not offered"),
    ({"stop": ["x"]}, "stop", "not offered"),
    ({"presence_penalty": 0.5}, "presence_penalty", "not offered"),
    ({"frequency_penalty": -0.5}, "frequency_penalty", "not offered"),
    ({"logit_bias": {"50256": -100}}, "logit_bias", "not offered"),
    ({"seed": 2**63}, "seed", "64 bits"),
    ({"extra_body": {"top_k": 4}}, "top_k", "no field of this request"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "for a stream"),
    ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other", "no field"),
    ({"stream": True, "n": 2}, "n", "only the best can be streamed"),
    ({"stream": True, "temperature": 1.0, "best_of": 2}, "best_of", "cannot be streamed"),
    ({"temperature": 1.0, "n": 32, "prompt": ["a"] * 256}, "prompt", "8,192 inputs, and the queue holds"),
]


@pytest.mark.parametrize(("options", "param", "sentence"), REFUSED)
def test_what_cannot_be_honoured_is_refused(
    options: dict[str, Any], param: str, sentence: str, service: Service
) -> None:
    before = len(service.engine.submitted)
    with pytest.raises(openai.BadRequestError) as caught:
        service.create(**options)
    assert sentence in str(caught.value)
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
    assert len(service.engine.submitted) == before


def test_neutral_values_of_what_is_not_offered_are_taken(service: Service) -> None:
    neutral = {"echo": False, "stop": None, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}}
    nulls = dict.fromkeys(
        ("best_of", "logprobs", "max_tokens", "n", "seed", "suffix", "temperature", "top_p", "stream")
    )
    assert service.create(**neutral, user="someone").choices == service.create(**nulls).choices


def test_a_body_that_is_not_json_is_refused_in_their_form(service: Service) -> None:
    request = urllib.request.Request(f"{service.url}/v1/completions", b"{", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    with caught.value as answer:
        error = json.loads(answer.read())["error"]
    assert (caught.value.code, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_json")


def test_a_full_queue_is_a_rate_limit_with_its_wait(service: Service) -> None:
    service.engine.refusal = QueueFullError("The queue is full; try again in 7 s.", 7)
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError, match="try again in 7 s") as caught:
            service.create(stream=stream)
        assert caught.value.response.headers["retry-after"] == "7"


def test_a_failure_is_opaque(service: Service) -> None:
    service.engine.failure = RuntimeError("secret")
    with pytest.raises(openai.InternalServerError, match="request id") as caught:
        service.create()
    assert "secret" not in str(caught.value)
    assert caught.value.type == "server_error"


def test_a_failure_in_the_middle_of_a_stream_is_told(service: Service) -> None:
    service.engine.pause_after = 1
    with service.create("horse", stream=True) as stream:
        next(stream)
        service.engine.failure = NotReadyError("The service is stopping.")
        with pytest.raises(openai.APIError, match="The service is stopping"):
            list(stream)


def test_a_client_that_leaves_a_stream_cancels_all_its_choices(service: Service) -> None:
    service.engine.pause_after = 1
    before = service.engine.cancelled
    with service.create("horse", stream=True, temperature=1.0, n=3) as stream:
        next(stream)
    wait_for(lambda: service.engine.cancelled == before + 3)
    wait_for(lambda: service.outcomes("/v1/completions", "cancelled") >= 1)


def test_a_client_that_stops_waiting_cancels_its_completion(service: Service) -> None:
    service.engine.pause_after = 1
    before = service.engine.cancelled

    async def ask_and_stop_waiting() -> None:
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
            asked = asyncio.create_task(client.completions.create(model="fake", prompt="horse"))
            while not service.engine.count_running():
                assert not asked.done()
                await asyncio.sleep(0.005)
            asked.cancel()
            await asyncio.wait([asked])

    asyncio.run(ask_and_stop_waiting())
    wait_for(lambda: service.engine.cancelled == before + 1)


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_taken_whole_or_refused_whole(stream: bool, serve: Callable[..., Service]) -> None:
    service = serve()
    service.engine.max_queue_requests = 2  # less than it says of itself, as if others were waiting
    with pytest.raises(openai.RateLimitError):
        service.create("horse", stream=stream, temperature=1.0, n=3)
    assert service.engine.submissions == 1
    assert service.engine.submitted == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [0, 5])
def test_a_completion_is_submitted_once_whatever_it_asks_for(stream: bool, logprobs: int, service: Service) -> None:
    before = service.engine.submissions
    answer = service.create(["cat", "horse"], temperature=1.0, n=2, logprobs=logprobs, stream=stream)
    if stream:
        list(answer)
    assert service.engine.submissions == before + 1


def test_a_prompt_whose_deadline_passed_leaves_the_others_their_choices(serve: Callable[..., Service]) -> None:
    service = serve()
    service.engine.failures = {service.engine.source_tokenizer.encode("cow"): DeadlineError("the deadline passed.")}
    answer = service.create(["cow", "cat"], n=1)
    assert [choice.finish_reason for choice in answer.choices] == ["length", "stop"]
    assert answer.choices[0].text == ""
    assert answer.choices[1].text == service.engine.target_tokenizer.decode(generated(service.engine, "cat").ids)
    chunks = list(service.create(["cow", "cat"], stream=True))
    assert joined(chunks) == {choice.index: choice.text for choice in answer.choices}
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="the deadline passed"):
            service.create("cow", stream=stream)


def test_a_deadline_ends_a_choice_as_a_length_does(serve: Callable[..., Service]) -> None:
    service = serve(timeout_ms=3000)
    service.engine.pause_after = 2
    choice = service.create("horse").choices[0]
    assert choice.finish_reason == "length"
    assert len(choice.text.split()) == 2


def test_a_wrong_key_is_refused_in_their_form(serve: Callable[..., Service]) -> None:
    service = serve(api_keys=("right",))
    assert service.create().choices
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as caught:
            stranger.models.list()
        assert caught.value.type == "authentication_error"


def test_outcomes_are_counted_by_endpoint(serve: Callable[..., Service]) -> None:
    service = serve()
    service.client.models.list()
    service.client.models.retrieve("fake")
    with pytest.raises(openai.NotFoundError):
        service.client.models.retrieve("other")
    with pytest.raises(openai.BadRequestError):
        service.create(n=0)
    list(service.create(stream=True))
    wait_for(lambda: service.outcomes("/v1/completions", "ok") == 1)
    assert service.outcomes("/v1/models", "ok") == 2
    assert service.outcomes("/v1/models", "not_found") == 1
    assert service.outcomes("/v1/completions", "invalid_field") == 1
