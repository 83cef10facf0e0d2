"""Tasks that are asked for twice and computed once, by a computation in flight or an answer that is kept."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attendant.export.bundle import Bundle
from attendant.service.engine.cache import shared
from attendant.service.engine.cache.answers import AnswerCache, Key, entry_bytes
from attendant.service.engine.cache.shared import SharedEngine
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.tasks import (
    AlignmentChoice,
    AttentionChoice,
    EventCallback,
    Explain,
    Finished,
    Generate,
    Generated,
    Hypothesis,
    NewTokens,
    NextToken,
    Options,
    Score,
    Task,
    Timing,
)
from attendant.service.errors import CancelledError, DeadlineError, NotReadyError, QueueFullError, ServiceError
from tests.support import engines, fake_engine
from tests.support.engines import Callback, finish_all, make_engine
from tests.support.fake_engine import FakeEngine
from tests.support.serving import wait_for
from tests.support.small_models import make_model
from tests.support.threads import in_threads

MEGABYTE = 10**6


class Recorder(EngineObserver):
    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def cache_hit(self, kind: str) -> None:
        self.seen[kind] += 1

    def cache_missed(self) -> None:
        self.seen["missed"] += 1


class Clock:
    """The time that SharedEngine and the fake engine see."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class CutShortEngine(FakeEngine):
    """What it has found when time is up may have ended, as the engine's may."""

    late_reason = "deadline"  # finish_reason of those hypotheses; "stop": they had ended, and others were live

    def _late(self, job: Any) -> Any:
        outcome = super()._late(job)
        if not isinstance(outcome, Generated):
            return outcome
        found = tuple(replace(hypothesis, finish_reason=self.late_reason) for hypothesis in outcome.hypotheses)
        return replace(outcome, hypotheses=found)


def generate(source: tuple[int, ...] = (4, 5, 6), **options: Any) -> Generate:
    return Generate(source=source, options=Options(**{"max_length": 12} | options))


EXPLAIN = Explain(
    search=generate(),
    attention=AttentionChoice(kinds=("cross",)),
    alignment=AlignmentChoice(layer=0, heads=(0,)),
    alignable=(0,),
    max_values=10**6,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(shared, "time", clock)
    monkeypatch.setattr(fake_engine, "time", clock)
    return clock


@pytest.fixture
def observer() -> Recorder:
    return Recorder()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[CutShortEngine]:
    engine = CutShortEngine(fake_engine.make_bundle(tmp_path / "bundle"))
    engine.start()
    yield engine
    engine.resume()
    engine.close()


@pytest.fixture
def engine(fake: FakeEngine, observer: Recorder) -> SharedEngine:
    """It shares what is in flight, and keeps nothing."""
    return SharedEngine(fake, observer)


@pytest.fixture
def keeping(fake: FakeEngine, observer: Recorder) -> SharedEngine:
    """The same, with a cache."""
    return SharedEngine(fake, observer, MEGABYTE)


def ask(engine: Any, *tasks: Task) -> list[Any]:
    callback = Callback(len(tasks))
    engine.submit(tasks, callback)
    outcomes = callback.wait()
    return [outcomes[index] for index in range(len(tasks))]


def submit(engine: Any, *tasks: Task, deadline: float | None = None) -> tuple[Callback, Any]:
    callback = Callback(len(tasks))
    return callback, engine.submit(tasks, callback, deadline)


# In flight.


def test_equal_tasks_in_flight_are_computed_once(fake: FakeEngine, engine: SharedEngine, observer: Recorder) -> None:
    fake.pause_after = 1
    callbacks = [submit(engine, generate())[0] for _ in range(3)]
    fake.resume()
    first, *others = (callback.wait()[0] for callback in callbacks)
    assert others == [first, first]
    assert fake.submitted == [generate()]
    assert observer.seen == {"missed": 1, "in_flight": 2}


def test_without_a_cache_nothing_outlives_its_computation(fake: FakeEngine, engine: SharedEngine) -> None:
    assert ask(engine, generate()) == ask(engine, generate())
    assert len(fake.submitted) == 2
    assert engine.count_cached_bytes() == 0


def test_equal_tasks_of_one_submission_are_computed_once_and_keep_their_places(
    fake: FakeEngine, engine: SharedEngine
) -> None:
    tasks = [generate(), generate((7,)), generate(), generate((7,)), generate((8, 9))]
    assert ask(engine, *tasks) == [ask(fake, task)[0] for task in tasks]
    assert fake.submitted[:3] == [generate(), generate((7,)), generate((8, 9))]


@pytest.mark.parametrize(
    "other",
    [
        generate((4, 5)),
        generate(beam_size=2),
        generate(temperature=1.0, seed=1),
        replace(generate(), prefix=(5,)),
        replace(generate(), start=(2,)),
        replace(generate(), top_logprobs=2),
        NextToken(source=(4, 5, 6)),
        Score(source=(4, 5, 6), target=()),
    ],
    ids=str,
)
def test_tasks_that_differ_in_anything_are_computed_each(
    fake: FakeEngine, keeping: SharedEngine, observer: Recorder, other: Task
) -> None:
    fake.pause_after = 0
    waiting = [submit(keeping, task)[0] for task in (generate(), other)]
    fake.resume()
    found = [engines.without_timing(callback.wait()[0]) for callback in waiting]
    assert found == [engines.without_timing(answer) for answer in ask(fake, generate(), other)]
    assert observer.seen == {"missed": 2}


def test_a_shared_computation_ends_when_the_last_who_waits_has_left(fake: FakeEngine, engine: SharedEngine) -> None:
    fake.pause_after = 1
    waiting = [submit(engine, generate()) for _ in range(3)]
    for callback, submission in waiting[:2]:
        submission.cancel()
        assert isinstance(callback.wait()[0], CancelledError)
    fake.resume()
    assert waiting[2][0].wait()[0] == ask(fake, generate())[0]
    assert fake.cancelled == 0
    fake.pause_after = 1
    waiting = [submit(engine, generate()) for _ in range(2)]
    for callback, submission in waiting:
        submission.cancel()
        submission.cancel()
        assert isinstance(callback.wait()[0], CancelledError)
    fake.resume()
    assert ask(engine, generate()) == ask(fake, generate())
    assert fake.cancelled == 1


def test_what_nobody_waits_for_ends_with_what_somebody_did(fake: FakeEngine, engine: SharedEngine) -> None:
    fake.pause_after = 3
    _, leaving = submit(engine, generate((4,)), generate((4, 5, 6, 7)))
    staying, _ = submit(engine, generate((4,)))
    leaving.cancel()
    assert staying.wait()[0] == ask(fake, generate((4,)))[0]
    wait_for(lambda: engine.count_running() == 0)
    assert fake.cancelled == 1


def test_nobody_joins_a_computation_that_was_cancelled(fake: FakeEngine, engine: SharedEngine) -> None:
    fake.pause_after = 1
    submit(engine, generate())[1].cancel()
    callback, _ = submit(engine, generate())
    fake.resume()
    assert callback.wait()[0] == ask(fake, generate())[0]


def test_a_failure_is_everyones_who_waits(fake: FakeEngine, keeping: SharedEngine) -> None:
    fake.pause_after = 1
    waiting = [submit(keeping, generate())[0] for _ in range(2)]
    fake.failure = ServiceError("broken.")
    fake.resume()
    assert [callback.wait()[0] for callback in waiting] == [fake.failure] * 2
    fake.failure = None
    assert ask(keeping, generate()) == ask(fake, generate())


def test_a_submission_that_is_refused_leaves_nothing_behind(fake: FakeEngine, keeping: SharedEngine) -> None:
    ask(keeping, generate((9,)))
    fake.pause_after = 1
    waiting, _ = submit(keeping, generate())
    fake.refusal = QueueFullError("full.", 1)
    refused = Callback(4)
    with pytest.raises(QueueFullError):
        keeping.submit([generate((9,)), generate(), generate((7,)), generate((8,))], refused)
    fake.refusal = None
    callback, _ = submit(keeping, generate((7,)))
    fake.resume()
    assert waiting.wait()[0] == ask(fake, generate())[0]
    assert callback.wait()[0] == ask(fake, generate((7,)))[0]
    assert refused.events == []


def test_a_refused_submission_gives_no_outcome_though_what_it_joined_was_refused_first(
    fake: FakeEngine, keeping: SharedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_is_asking, second_is_asking = threading.Event(), threading.Event()

    def refuse(tasks: Sequence[Task], *_: Any) -> None:
        if not first_is_asking.is_set():
            first_is_asking.set()
            assert second_is_asking.wait(10)
        elif tasks[0] == generate((7,)):
            second_is_asking.set()
            first.join(10)
        raise QueueFullError("full.", 1)

    def submit_first() -> None:
        with pytest.raises(QueueFullError):
            keeping.submit([generate()], Callback(1))

    monkeypatch.setattr(fake, "submit", refuse)
    first = threading.Thread(target=submit_first)
    first.start()
    assert first_is_asking.wait(10)
    refused = Callback(2)
    with pytest.raises(QueueFullError):
        keeping.submit([generate(), generate((7,))], refused)
    assert refused.events == []


def test_a_submission_that_is_refused_counts_neither_hits_nor_misses(
    fake: FakeEngine, keeping: SharedEngine, observer: Recorder
) -> None:
    ask(keeping, generate((9,)))
    fake.pause_after = 1
    waiting, _ = submit(keeping, generate())
    observer.seen.clear()
    tasks = [generate((9,)), generate(), generate((7,))]
    fake.refusal = QueueFullError("full.", 1)
    with pytest.raises(QueueFullError):
        keeping.submit(tasks, Callback(3))
    assert not observer.seen
    fake.refusal = None
    accepted, _ = submit(keeping, *tasks)
    assert observer.seen == {"finished": 1, "in_flight": 1, "missed": 1}
    fake.resume()
    waiting.wait()
    accepted.wait()


def test_what_joins_takes_no_place_in_the_queue(fake: FakeEngine, engine: SharedEngine) -> None:
    fake.pause_after, fake.max_queue_requests = 1, 1
    waiting = [submit(engine, generate())[0] for _ in range(5)]
    assert engine.count_running() == 1
    with pytest.raises(QueueFullError):
        engine.submit([generate((7,))], Callback())
    fake.resume()
    assert len({callback.wait()[0] for callback in waiting}) == 1


def test_explanations_are_computed_each(fake: FakeEngine, keeping: SharedEngine, observer: Recorder) -> None:
    ask(keeping, EXPLAIN)
    ask(keeping, EXPLAIN)
    assert len(fake.submitted) == 2
    assert not observer.seen


# Deadlines. The fake engine decodes when it is resumed, and looks at the clock of the test.


def test_with_equal_timeouts_the_later_joins_the_earlier(fake: FakeEngine, engine: SharedEngine, clock: Clock) -> None:
    fake.pause_after = 1
    waiting = []
    for _ in range(3):
        clock.now += 1
        waiting.append(submit(engine, generate(), deadline=clock.now + 60)[0])
    fake.resume()
    assert len({callback.wait()[0] for callback in waiting}) == 1
    assert len(fake.submitted) == 1


@pytest.mark.parametrize(("first", "second"), [(60, 5), (5, 60), (60, None), (None, 60)])
def test_with_another_timeout_a_task_is_computed_by_itself(
    fake: FakeEngine, engine: SharedEngine, clock: Clock, first: float | None, second: float | None
) -> None:
    fake.pause_after = 1
    deadlines = [None if seconds is None else clock.now + seconds for seconds in (first, second)]
    waiting = [submit(engine, generate(), deadline=deadline)[0] for deadline in deadlines]
    fake.resume()
    assert len({callback.wait()[0] for callback in waiting}) == 1
    assert len(fake.submitted) == 2


def test_the_one_with_the_most_time_is_joined(fake: FakeEngine, engine: SharedEngine, clock: Clock) -> None:
    fake.pause_after = 1
    waiting = [submit(engine, generate(), deadline=clock.now + seconds)[0] for seconds in (5, 60, 5.5, 60)]
    fake.resume()
    assert len({callback.wait()[0] for callback in waiting}) == 1
    assert len(fake.submitted) == 3  # the third has less time than the second, and more than the first


def wait_until_paused(fake: FakeEngine, after: int) -> None:
    wait_for(lambda: all(len(job.ids) == after for job in fake._jobs))


def expire_first(fake: FakeEngine, engine: SharedEngine, clock: Clock, after: int) -> tuple[Callback, Callback]:
    """Two who share a computation that stops after some tokens, until the first one's deadline has passed."""
    fake.pause_after = after
    first, _ = submit(engine, generate(), deadline=clock.now + 60)
    clock.now += 30
    second, _ = submit(engine, generate(), deadline=clock.now + 60)
    assert len(fake.submitted) == 1
    wait_until_paused(fake, after)
    clock.now += 31
    first.wait()
    return first, second


@pytest.mark.parametrize("after", [0, 2])
def test_who_has_time_left_gets_the_whole_answer_though_the_other_was_cut_short(
    fake: FakeEngine, keeping: SharedEngine, clock: Clock, after: int
) -> None:
    first, second = expire_first(fake, keeping, clock, after)
    [cut] = first.wait().values()
    assert isinstance(cut, DeadlineError) if not after else cut.hypotheses[0].finish_reason == "deadline"
    assert second.events == []
    fake.resume()
    assert second.wait()[0] == ask(fake, generate())[0]
    assert second.wait()[0].hypotheses[0].finish_reason == "stop"


def test_at_its_own_deadline_it_has_at_least_what_the_other_had(
    fake: FakeEngine, keeping: SharedEngine, clock: Clock
) -> None:
    first, second = expire_first(fake, keeping, clock, 2)
    fake.pause_after = 0
    clock.now += 30
    assert second.wait() == first.wait()
    fake.resume()
    assert ask(keeping, generate())[0].hypotheses[0].finish_reason == "stop"


def test_what_was_cut_short_is_not_kept(fake: FakeEngine, keeping: SharedEngine, clock: Clock) -> None:
    fake.pause_after = 2
    callback, _ = submit(keeping, generate(), deadline=clock.now + 1)
    wait_until_paused(fake, 2)
    clock.now += 2
    assert callback.wait()[0].hypotheses[0].finish_reason == "deadline"
    assert keeping.count_cached_bytes() == 0
    fake.resume()
    assert ask(keeping, generate())[0].hypotheses[0].finish_reason == "stop"


def test_a_search_that_a_deadline_ended_is_not_kept_though_all_that_it_answers_had_ended(
    fake: CutShortEngine, keeping: SharedEngine, clock: Clock
) -> None:
    fake.late_reason = "stop"
    first, second = expire_first(fake, keeping, clock, 2)
    assert first.wait()[0].hypotheses[0].finish_reason == "stop"
    assert keeping.count_cached_bytes() == 0
    fake.resume()
    assert second.wait()[0] == ask(keeping, generate())[0] == ask(fake, generate())[0] != first.wait()[0]


@pytest.mark.parametrize(
    ("earlier", "later", "worse"),
    [
        (("deadline", 3, -1.0), ("deadline", 3, -1.0), True),
        (("deadline", 3, -1.0), ("deadline", 4, -2.0), False),
        (("deadline", 3, -1.0), ("stop", 3, -2.0), False),
        (("stop", 3, -2.0), ("deadline", 4, -1.0), True),
        (("stop", 3, -2.0), ("stop", 3, -1.0), False),
    ],
)
def test_of_two_that_were_cut_short_the_one_that_had_ended_is_answered_then_the_better_or_the_longer(
    earlier: tuple[str, int, float], later: tuple[str, int, float], worse: bool
) -> None:
    found = [
        Generated((Hypothesis((4,) * length, (), score, reason),), Timing(0, 0, 0), cut_short=True)
        for reason, length, score in (earlier, later)
    ]
    assert shared._is_worse(found[1], found[0]) == worse


def test_who_was_to_be_computed_again_and_is_refused_gets_one_outcome(
    fake: FakeEngine, engine: SharedEngine, clock: Clock
) -> None:
    fake.refusal = None
    fake.pause_after = 0
    first, _ = submit(engine, generate(), deadline=clock.now + 60)
    clock.now += 30
    second, submission = submit(engine, generate(), deadline=clock.now + 60)
    fake.refusal = QueueFullError("full.", 1)
    clock.now += 31
    assert isinstance(first.wait()[0], DeadlineError)
    assert second.wait()[0] is fake.refusal
    submission.cancel()
    assert len(second.events) == 1


def test_who_is_computed_again_can_leave(fake: FakeEngine, engine: SharedEngine, clock: Clock) -> None:
    fake.pause_after = 0
    first, _ = submit(engine, generate(), deadline=clock.now + 60)
    clock.now += 30
    second, submission = submit(engine, generate(), deadline=clock.now + 60)
    clock.now += 31
    first.wait()
    submission.cancel()
    assert isinstance(second.wait()[0], CancelledError)
    fake.resume()
    fake.close(grace=10)
    assert len(second.events) == 1
    assert fake.cancelled <= 1


class ManualEngine(FakeEngine):
    """Decodes nothing: the test gives the events of what was submitted."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.callbacks: list[EventCallback] = []

    def submit(self, tasks: Any, on_event: EventCallback, deadline: Any = None, client: Any = None) -> Any:  # noqa: ARG002
        self.callbacks.append(on_event)
        return fake_engine.FakeSubmission(self)


class HookedLock:
    """A lock; whoever releases it runs the next hook, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.hooks: list[Callable[[], Any]] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self.hooks:
            self.hooks.pop(0)()


def test_a_task_whose_computation_is_cut_short_just_as_it_is_accepted_gets_one_outcome(tmp_path: Path) -> None:
    inner = ManualEngine(fake_engine.make_bundle(tmp_path))
    engine, lock = SharedEngine(inner), HookedLock()
    engine._lock = lock  # type: ignore[assignment]
    now = time.monotonic()
    submit(engine, generate(), deadline=now + 1000)
    late = Finished(0, DeadlineError("late."))
    cutting = threading.Thread(target=lambda: inner.callbacks[0](late), daemon=True)
    noted, accepted = threading.Event(), threading.Event()

    def cut_short() -> None:
        """The other thread has noted that the computation was cut short, and has done nothing about it yet."""
        cutting.start()
        assert noted.wait(30)

    def stop_there() -> None:
        noted.set()
        assert accepted.wait(30)

    # Three times it is released by the submission, the last time by what accepts it; then by the other thread.
    lock.hooks = [lambda: None, lambda: None, cut_short, stop_there]
    callback, _ = submit(engine, generate((7,)), generate(), deadline=now + 1001)
    accepted.set()
    cutting.join(30)
    answer = ServiceError("an outcome.")
    for on_event in inner.callbacks[1:]:
        on_event(Finished(0, answer))
    assert sorted(event.index for event in callback.events) == [0, 1]
    assert len(inner.callbacks) == 3


def test_a_waiter_that_is_given_an_answer_twice_at_once_has_it_once(engine: SharedEngine) -> None:
    callback = Callback()
    waiter = shared.Waiter(generate(), None, 0, callback, None)
    engine._finish([waiter, waiter], ServiceError("an outcome."))
    assert len(callback.events) == 1


# Kept.


def test_an_answer_that_is_kept_is_given_again_and_is_the_same(
    fake: FakeEngine, keeping: SharedEngine, observer: Recorder
) -> None:
    tasks = [generate(), generate(beam_size=3, num_hypotheses=3), Score(source=(4,), target=(5,))]
    assert ask(keeping, *tasks) == ask(keeping, *tasks) == ask(fake, *tasks)
    assert len(fake.submitted) == 2 * len(tasks)
    assert observer.seen == {"missed": 3, "finished": 3}
    assert keeping.count_cached_bytes() > 0


def test_streamed_from_the_cache_is_as_streamed(fake: FakeEngine, keeping: SharedEngine) -> None:
    for task in (generate(), replace(generate(), top_logprobs=2, prefix=(5,)), generate(max_length=2)):
        streamed = replace(task, stream=True)
        computed, again, whole = (submit(keeping, asked)[0] for asked in (streamed, streamed, task))
        for callback in (computed, again, whole):
            callback.wait()
        from_cache, _ = submit(keeping, streamed)
        *events, finished = from_cache.events
        assert finished == computed.events[-1] == whole.events[-1] == again.events[-1]
        assert joined_tokens(events) == joined_tokens(computed.events[:-1])
        assert all(isinstance(event, NewTokens) for event in events)


def joined_tokens(events: list[Any]) -> list[tuple[Any, ...]]:
    names = ("ids", "logprobs", "top_logprobs")
    return [tuple(value for event in events for value in getattr(event, name)) for name in names]


def test_a_streamed_task_is_computed_beside_its_equal_in_flight(fake: FakeEngine, engine: SharedEngine) -> None:
    fake.pause_after = 1
    whole, _ = submit(engine, generate())
    streamed, _ = submit(engine, replace(generate(), stream=True))
    fake.resume()
    assert streamed.wait() == whole.wait()
    assert len(fake.submitted) == 2
    assert joined_tokens(streamed.events[:-1])[0] == whole.wait()[0].hypotheses[0].ids


def test_one_that_is_not_streamed_joins_one_that_is(fake: FakeEngine, engine: SharedEngine) -> None:
    fake.pause_after = 1
    streamed, leaving = submit(engine, generate((7,)), replace(generate(), stream=True))
    whole, _ = submit(engine, generate())
    leaving.cancel()
    fake.resume()
    assert whole.wait()[0] == ask(fake, generate())[0]
    assert len(whole.events) == 1
    assert {type(outcome) for outcome in streamed.wait().values()} == {CancelledError}


def test_after_it_is_closed_nothing_is_answered_or_kept(keeping: SharedEngine) -> None:
    ask(keeping, generate())
    keeping.close()
    assert keeping.count_cached_bytes() == 0
    with pytest.raises(NotReadyError):
        keeping.submit([generate()], Callback())


def test_closing_without_time_fails_all_who_share(fake: FakeEngine, engine: SharedEngine) -> None:
    fake.pause_after = 1
    waiting = [submit(engine, generate())[0] for _ in range(3)]
    engine.close()
    assert [type(callback.wait()[0]) for callback in waiting] == [NotReadyError] * 3


def test_a_callback_that_raises_disturbs_no_other(
    fake: FakeEngine, engine: SharedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: NewTokens | Finished) -> None:
        raise RuntimeError("broken")

    fake.pause_after = 1
    engine.submit([generate()], broken)
    callback, _ = submit(engine, generate())
    fake.resume()
    assert callback.wait()[0] == ask(fake, generate())[0]
    assert "a request's callback failed" in caplog.text


# The cache alone.


def test_the_least_recently_used_goes_first_and_the_bytes_are_bounded(fake: FakeEngine) -> None:
    tasks = [generate((4, number)) for number in range(4, 10)]
    answers = ask(fake, *tasks)
    keys = [Key(task) for task in tasks]
    sizes = [entry_bytes(key, answer) for key, answer in zip(keys, answers, strict=True)]
    cache = AnswerCache(sum(sizes[:3]) + max(sizes) - 1)
    for key, answer in zip(keys[:3], answers, strict=False):
        cache.put(key, answer)
    assert cache.bytes == sum(sizes[:3])
    assert cache.get(keys[0]) is answers[0]
    cache.put(keys[3], answers[3])
    kept = [cache.get(key) is not None for key in keys[:4]]
    assert kept == [True, False, True, True]
    for key, answer in zip(keys, answers, strict=True):
        cache.put(key, answer)
        assert cache.bytes <= cache.max_bytes
        assert cache.bytes == sum(size for key, size in zip(keys, sizes, strict=True) if cache.get(key) is not None)


def test_an_answer_larger_than_the_cache_is_not_kept(fake: FakeEngine) -> None:
    key, [answer] = Key(generate()), ask(fake, generate())
    cache = AnswerCache(entry_bytes(key, answer) - 1)
    cache.put(key, answer)
    assert (len(cache), cache.bytes) == (0, 0)


# With the real engine.


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return engines.make_bundle(make_model(seed=3), tmp_path_factory.mktemp("bundle") / "small", ("fp32",))


def random_task(rng: random.Random) -> Task:
    """One of few, so that many are equal."""
    source = tuple(rng.choice([4, 5, 9]) for _ in range(rng.randint(1, 2)))
    kind = rng.randrange(6)
    if kind == 0:
        return NextToken(source=source, prefix=(5,))
    if kind == 1:
        return Score(source=source, target=(5, 6), top_logprobs=2)
    beam = rng.choice([1, 3])
    options: dict[str, Any] = {"temperature": 1.0, "seed": rng.randrange(2)} if kind == 2 else {"beam_size": beam}
    return replace(generate(source, **options, num_hypotheses=beam), stream=rng.random() < 0.3)


@pytest.mark.parametrize("cache_bytes", [0, 8_000, MEGABYTE])
def test_any_mixture_has_the_answers_of_each_task_alone(bundle: Bundle, cache_bytes: int) -> None:
    rng, plain, inner, observer = random.Random(cache_bytes), make_engine(bundle), make_engine(bundle), Recorder()
    engine = SharedEngine(inner, observer, cache_bytes)
    alone: dict[Task, Any] = {}
    waiting = []
    for _ in range(60):
        tasks = [random_task(rng) for _ in range(rng.randint(1, 4))]
        callback, submission = submit(engine, *tasks)
        cancelled = rng.random() < 0.1
        if cancelled:
            submission.cancel()
        waiting.append((tasks, callback, cancelled))
        for _ in range(rng.randrange(4)):
            inner.iteration()
        assert engine.count_cached_bytes() <= cache_bytes
    finish_all(inner)
    for tasks, callback, cancelled in waiting:
        answers = callback.wait()
        for index, task in enumerate(tasks):
            if cancelled and isinstance(answers[index], CancelledError):
                continue
            if task not in alone:
                alone[task] = engines.without_timing(plain.run([task])[0])
            assert engines.without_timing(answers[index]) == alone[task]
            if task.stream:
                events = [event for event in callback.events if isinstance(event, NewTokens) and event.index == index]
                assert joined_tokens(events)[0] == answers[index].hypotheses[0].ids
    assert observer.seen["in_flight"] > 0
    assert (observer.seen["finished"] > 0) == (cache_bytes > 0)


def test_in_the_real_engine_too_two_are_computed_once_and_either_may_leave(bundle: Bundle) -> None:
    inner = make_engine(bundle)
    engine = SharedEngine(inner)
    for leaving in (0, 1):
        waiting = [submit(engine, generate(min_length=6)) for _ in range(2)]
        assert engine.count_waiting() == 1
        inner.iteration()
        waiting[leaving][1].cancel()
        finish_all(inner)
        assert isinstance(waiting[leaving][0].wait()[0], CancelledError)
        found = waiting[1 - leaving][0].wait()[0]
        assert engines.without_timing(found) == engines.without_timing(inner.run([generate(min_length=6)])[0])


def test_in_the_real_engine_too_who_has_time_left_is_computed_again(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, monotonic = make_engine(bundle), time.monotonic
    engine = SharedEngine(inner)
    task, now = generate(min_length=6), monotonic()
    first, _ = submit(engine, task, deadline=now + 1000)
    second, _ = submit(engine, task, deadline=now + 1090)
    assert engine.count_waiting() == 1
    inner.iteration()
    inner.iteration()
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 1001)
    finish_all(inner)
    assert first.wait()[0].hypotheses[0].finish_reason == "deadline"
    assert engines.without_timing(second.wait()[0]) == engines.without_timing(inner.run([task])[0])


def test_from_many_threads_each_task_gets_one_outcome_and_the_right_one(bundle: Bundle) -> None:
    inner = make_engine(bundle, max_queue_requests=8)
    alone = {source: inner.run([generate((source,))])[0].hypotheses for source in range(4, 8)}
    engine, callbacks = SharedEngine(inner, cache_bytes=3_000), []
    engine.start()

    def client(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            sources = [rng.randrange(4, 8) for _ in range(rng.randint(1, 3))]
            callback = Callback(len(sources))
            deadline = time.monotonic() + rng.choice([0.0, 0.002, 60])
            try:
                submission = engine.submit([generate((source,)) for source in sources], callback, deadline)
            except QueueFullError:
                assert callback.events == []
                continue
            callbacks.append((sources, callback))
            if rng.random() < 0.3:
                submission.cancel()

    in_threads(6, client)
    compared = 0
    for sources, callback in callbacks:
        for index, answer in callback.wait().items():
            if isinstance(answer, Exception):
                assert isinstance(answer, CancelledError | DeadlineError | QueueFullError)
            elif answer.hypotheses[0].finish_reason != "deadline":
                assert answer.hypotheses == alone[sources[index]]
                compared += 1
    assert compared
    engine.close(grace=10)
    assert engine._in_flight == {}
    assert all(len(callback.events) == len(sources) for sources, callback in callbacks)
