"""A model's state: transitions from any state, in any order, keep what must hold; nothing else changes it."""

from __future__ import annotations

import ast
import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.service.errors import CancelledError, DeadlineError, NotReadyError
from attendant.service.models.bundles import FoundBundle
from attendant.service.models.model import ClientWatch, Model, ModelStateError
from attendant.service.requests.served import ServedModel
from attendant.service.watch.metrics import MODEL_STATES

SERVICE = Path(__file__).parents[3] / "service"
PROPERTIES = sorted(name for name, value in vars(Model).items() if isinstance(value, property))
TASK = cast("asyncio.Task[None]", object())
BUNDLE, BROKEN = (FoundBundle(name="a", directory=Path("a"), problem=problem) for problem in (None, "a is torn."))


def served(name: str = "a", waiting: int = 0, running: int = 0) -> ServedModel:
    engine = SimpleNamespace(count_waiting=lambda: waiting, count_running=lambda: running)
    return cast(ServedModel, SimpleNamespace(name=name, engine=engine))


TRANSITIONS: dict[str, Callable[[Model], object]] = {
    "begin_load": lambda model: model.begin_load(TASK),
    "serve": lambda model: model.serve(served()),
    "fail_load": lambda model: model.fail_load("it failed.", 7.0),
    "end_load": lambda model: model.end_load(),
    "begin_eviction": lambda model: model.begin_eviction(),
    "cancel_eviction": lambda model: model.cancel_eviction(),
    "unload": lambda model: model.unload(),
    "renew": lambda model: model.renew(BUNDLE),
    "renew, broken": lambda model: model.renew(BROKEN),
    "refuse_bundle": lambda model: model.refuse_bundle("it is refused."),
    "remove": lambda model: model.remove(),
}


@dataclass
class Expected:
    """What the docstring's table says, in five flags."""

    has_bundle: bool
    failed: bool
    loaded: bool = False
    load: bool = False
    evicting: bool = False
    removed: bool = False

    def allows(self, transition: str) -> bool:
        available = self.loaded and not self.evicting
        return {
            "begin_load": not available and not self.load and not self.removed,
            "serve": not self.removed,
            "fail_load": self.load,
            "end_load": self.load,
            "begin_eviction": available,
            "cancel_eviction": self.evicting,
            "unload": self.loaded,
            "renew": self.has_bundle and not self.removed,
            "renew, broken": self.has_bundle and not self.removed,
            "refuse_bundle": not self.removed,
            "remove": not self.removed,
        }[transition]

    def apply(self, transition: str) -> None:
        if transition in ("begin_load", "end_load"):
            self.load = transition == "begin_load"
        elif transition == "serve":
            self.loaded, self.failed, self.evicting = True, False, False
        elif transition in ("fail_load", "refuse_bundle"):
            self.failed = True
        elif transition in ("begin_eviction", "cancel_eviction"):
            self.evicting = transition == "begin_eviction"
        elif transition.startswith("renew"):
            self.failed = transition == "renew, broken" and not self.loaded
        else:
            self.loaded = self.evicting = False
            self.removed = self.removed or transition == "remove"

    @property
    def state(self) -> str:
        if self.loaded:
            return "loaded"
        return "loading" if self.load else "failed" if self.failed else "unloaded"


def facts(model: Model) -> dict[str, object]:
    return {name: getattr(model, name) for name in PROPERTIES}


def check_invariants(model: Model) -> None:
    assert model.state in MODEL_STATES
    assert (model.state == "loaded") == (model.served is not None)
    assert model.available in (None, model.served)
    assert (model.available is None) == (model.evicting or model.state != "loaded")
    assert not model.evicting or model.state == "loaded"
    assert not model.idle or model.state == "loaded"
    assert model.state != "loading" or model.loading is not None
    assert model.state != "failed" or model.failure
    assert model.failure or not model.retry_at
    assert not model.removed or model.served is None
    assert model.bundle is None or model.bundle.name == model.name
    assert model.planning == 0


def step(model: Model, expected: Expected, transition: str) -> None:
    """Both take the transition; where it is not allowed, it is refused and nothing changes."""
    before = facts(model)
    if expected.allows(transition):
        TRANSITIONS[transition](model)
        expected.apply(transition)
    else:
        with pytest.raises(ModelStateError, match="cannot"):
            TRANSITIONS[transition](model)
        assert facts(model) == before, transition
    check_invariants(model)
    found = (model.state, model.failure is not None, model.evicting, model.removed, model.loading is not None)
    assert found == (expected.state, expected.failed, expected.evicting, expected.removed, expected.load), transition


def started(bundle: FoundBundle | None) -> tuple[Model, Expected]:
    return Model(bundle), Expected(has_bundle=bundle is not None, failed=bundle is BROKEN)


@pytest.mark.parametrize("bundle", [None, BUNDLE, BROKEN])
def test_every_transition_from_every_state_does_what_the_table_says_or_is_refused(bundle: FoundBundle | None) -> None:
    paths: list[tuple[str, ...]] = [()]  # the shortest to each state that can be reached
    states = {astuple(started(bundle)[1])}
    for path in paths:
        for transition in TRANSITIONS:
            model, expected = started(bundle)
            for name in (*path, transition):
                step(model, expected, name)
            if astuple(expected) not in states:
                states.add(astuple(expected))
                paths.append((*path, transition))
    assert len(states) == 16  # failed or not, with a load or none: unloaded, loaded, evicting, removed


@given(st.sampled_from([None, BUNDLE, BROKEN]), st.data())
def test_any_sequence_of_transitions_keeps_the_invariants(bundle: FoundBundle | None, data: st.DataObject) -> None:
    model, expected = started(bundle)
    for _ in range(data.draw(st.integers(1, 30))):
        allowed = [name for name in TRANSITIONS if expected.allows(name)]
        names = allowed if allowed and data.draw(st.booleans()) else [*TRANSITIONS]
        step(model, expected, data.draw(st.sampled_from(names)))


def test_a_removed_model_never_loads_whatever_is_tried() -> None:
    model = Model(BUNDLE)
    model.begin_load(TASK)
    model.remove()
    model.fail_load("it failed.", 7.0)
    model.end_load()
    for name in ("begin_load", "serve", "renew"):
        with pytest.raises(ModelStateError, match="removed"):
            TRANSITIONS[name](model)


def test_a_new_bundle_may_be_loaded_at_once_after_the_old_one_failed() -> None:
    model = Model(BUNDLE)
    model.begin_load(TASK)
    model.fail_load("it failed.", 7.0)
    model.end_load()
    assert (model.failure, model.retry_at) == ("it failed.", 7.0)
    newer = FoundBundle(name="a", directory=Path("a"), digest="newer")
    model.renew(newer)
    assert (model.bundle, model.failure, model.retry_at, model.state) == (newer, None, 0.0, "unloaded")


def test_a_model_knows_when_it_was_used_last() -> None:
    model = Model(BUNDLE)
    model.use(3.0)
    assert model.last_used == 3.0


def test_every_transition_is_in_the_table_of_the_docstring_and_in_this_test() -> None:
    public = {name for name in vars(Model) if not name.startswith("_")} - set(PROPERTIES)
    drawn = set(re.findall(r"^ *\| (\w+)\(", Model.__doc__ or "", re.MULTILINE))
    assert drawn == public - {"use", "planning_texts", "wait", "wake"}
    assert drawn == {name.split(",")[0] for name in TRANSITIONS}


def test_a_model_serves_and_is_renewed_under_its_own_name_alone() -> None:
    model = Model(BUNDLE)
    with pytest.raises(ModelStateError, match="be loaded as 'b'"):
        model.serve(served("b"))
    with pytest.raises(ModelStateError, match="a bundle of 'b'"):
        model.renew(FoundBundle(name="b", directory=Path("b")))
    configured = Model()
    configured.serve(served("b"))
    assert configured.name == "b"


def test_what_is_replaced_unloaded_or_removed_is_returned_for_its_engine_to_be_closed() -> None:
    model, first, second, third = Model(BUNDLE), served(), served(), served()
    assert model.serve(first) is None
    assert model.serve(second) is first
    assert model.unload() is second
    model.serve(third)
    assert model.remove() is third


def test_a_refused_transition_says_in_what_state_the_model_is() -> None:
    model = Model(BUNDLE)
    model.serve(served())
    model.begin_eviction()
    model.begin_load(TASK)
    with pytest.raises(ModelStateError) as caught:
        model.begin_eviction()
    assert str(caught.value) == "The model 'a' is loaded and evicting, with a load under way, and cannot be evicted."


@pytest.mark.parametrize(("waiting", "running", "idle"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_a_model_is_idle_where_nothing_is_queued_running_or_being_planned(
    waiting: int, running: int, idle: bool
) -> None:
    model = Model(BUNDLE)
    model.serve(served(waiting=waiting, running=running))
    assert model.idle == idle
    with model.planning_texts(), model.planning_texts():
        assert model.planning == 2
        assert not model.idle
    assert model.idle == idle


def test_texts_whose_planning_fails_are_no_longer_planned() -> None:
    model = Model(BUNDLE)
    with pytest.raises(ValueError, match="too long"), model.planning_texts():
        raise ValueError("too long")
    assert model.planning == 0


class Client(ClientWatch):
    """Watched from the moment that it is called."""

    def __init__(self) -> None:
        self.disconnect: Callable[[], None] = lambda: None
        self.watched = False

    def __call__(self, on_disconnect: Callable[[], None]) -> ClientWatch:
        self.disconnect, self.watched = on_disconnect, True
        return self

    def stop(self) -> None:
        self.watched = False


def waited(model: Model, act: Callable[[Client], object], deadline: float | None = None) -> bool:
    """Whether a request that waits for the model goes on after `act`; raises what it fails with."""

    async def run() -> bool:
        client = Client()
        task = asyncio.create_task(model.wait(deadline, client))
        await asyncio.sleep(0)
        assert model.wanted
        assert client.watched
        act(client)
        done, _ = await asyncio.wait([task], timeout=5.0 if deadline is not None else 0.01)
        task.cancel()
        try:
            await asyncio.wait([task])
        finally:
            assert not model.wanted
            assert not client.watched
        if done:
            task.result()
        return bool(done)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("before", "transition", "wakes"),
    [
        ((), "serve", True),
        ((), "remove", True),
        (("begin_load",), "end_load", True),
        (("begin_load",), "fail_load", False),
        (("serve",), "begin_eviction", False),
        (("serve", "begin_eviction"), "cancel_eviction", True),
        (("serve", "begin_eviction"), "unload", False),
    ],
)
def test_requests_that_wait_check_again_where_it_may_help_them(
    before: tuple[str, ...], transition: str, wakes: bool
) -> None:
    model = Model(BUNDLE)
    for name in before:
        TRANSITIONS[name](model)
    assert waited(model, lambda _: TRANSITIONS[transition](model)) == wakes


def test_requests_that_wait_fail_with_the_error_of_the_load() -> None:
    model = Model(BUNDLE)
    model.begin_load(TASK)
    with pytest.raises(NotReadyError, match="is torn"):
        waited(model, lambda _: model.end_load(NotReadyError("a is torn.")))


def test_a_request_waits_until_its_client_disconnects_or_its_deadline_passes() -> None:
    with pytest.raises(CancelledError):
        waited(Model(BUNDLE), lambda client: client.disconnect())
    with pytest.raises(DeadlineError, match="before the model 'a' was loaded"):
        waited(Model(BUNDLE), lambda _: None, deadline=time.monotonic())


def test_a_waiting_request_keeps_a_model_from_being_idle_unless_it_is_evicted() -> None:
    found = []
    model = Model(BUNDLE)
    model.serve(served())

    def look(_: Client) -> None:
        found.append(model.idle)
        model.begin_eviction()
        found.append(model.idle)

    waited(model, look)
    assert found == [False, True]


@pytest.mark.parametrize("name", PROPERTIES)
def test_what_others_see_of_a_model_is_read_only(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Model(BUNDLE), name, None)


def assigned(source: str) -> list[str]:
    """Assignments, of whatever form, to what a model has, by others than the object itself."""
    names = {*PROPERTIES, *Model.__slots__}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            owner: ast.expr = node.value
            named = node.attr in names
        elif isinstance(node, ast.Call) and "setattr" in ast.unparse(node.func):
            owner, written = node.args[0], node.args[1]
            named = isinstance(written, ast.Constant) and written.value in names
        else:
            continue
        if named and not (isinstance(owner, ast.Name) and owner.id == "self"):
            found.append(ast.unparse(node))
    return found


def test_no_attribute_of_a_model_is_assigned_outside_its_file() -> None:
    others = [path for path in SERVICE.rglob("*.py") if path != SERVICE / "models" / "model.py"]
    assert len(others) > 50
    found: dict[str, Any] = {str(path): assigned(path.read_text(encoding="utf-8")) for path in others}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "model.served = None",
        "old, model._served = model.served, None",
        "models[0].planning += 1",
        "self.model.retry_at: float = 0.0",
        "for model.name in names: pass",
        "with opened() as model.bundle: pass",
        "del model.loading",
        "setattr(model, 'failure', None)",
        "object.__setattr__(model, '_served', None)",
    ],
)
def test_an_assignment_of_any_form_is_found(source: str) -> None:
    assert len(assigned(source)) == 1


def test_what_an_object_assigns_of_its_own_is_left_alone() -> None:
    assert assigned("self.name = name; self.loaded, other.text = 1, 2") == []
