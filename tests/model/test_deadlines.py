"""A time limit that is put off again and again is missed when it was last put off to, and costs one timer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from accordion.model.deadlines import Deadline


class Timer:
    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when, self.callback = when, callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop whose time passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    @property
    def waiting(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def run(self, until: float) -> None:
        while due := sorted((timer for timer in self.waiting if timer.when <= until), key=lambda timer: timer.when):
            self.timers.remove(due[0])
            self.now = max(self.now, due[0].when)
            due[0].callback()
        self.now = until


def build_deadline() -> tuple[Loop, Deadline, list[float]]:
    loop, missed = Loop(), list[float]()
    return loop, Deadline(loop, lambda: missed.append(loop.now)), missed


def test_it_is_missed_once_when_its_time_is_over() -> None:
    loop, deadline, missed = build_deadline()
    deadline.restart(5.0)
    loop.run(200.0)
    assert missed == [105.0]
    assert not loop.waiting


def test_putting_it_off_a_thousand_times_takes_one_timer() -> None:
    loop, deadline, missed = build_deadline()
    for _ in range(1_000):
        deadline.restart(50.0)
        loop.run(loop.now + 0.01)
    assert len(loop.timers) == 1
    loop.run(200.0)
    assert len(missed) == 1


def test_one_that_is_lifted_is_not_missed_and_can_be_put_off_again() -> None:
    loop, deadline, missed = build_deadline()
    deadline.restart(5.0)
    deadline.stop()
    loop.run(120.0)
    assert not missed
    deadline.restart(5.0)
    loop.run(200.0)
    assert missed == [125.0]


def test_a_shorter_one_is_missed_in_its_own_time() -> None:
    loop, deadline, missed = build_deadline()
    deadline.restart(50.0)
    deadline.restart(1.0)
    assert len(loop.waiting) == 1
    loop.run(200.0)
    assert missed == [101.0]


def test_one_that_is_closed_leaves_no_timer_behind() -> None:
    loop, deadline, missed = build_deadline()
    deadline.restart(5.0)
    deadline.close()
    deadline.close()
    assert not loop.waiting
    loop.run(200.0)
    assert not missed


def test_one_that_is_closed_lets_go_of_who_holds_it() -> None:
    class Owner:
        def __init__(self) -> None:
            self.deadline = Deadline(Loop(), self.missed)

        def missed(self) -> None:
            """Nothing happens."""

    owner = Owner()
    known = weakref.ref(owner)
    owner.deadline.restart(5.0)
    owner.deadline.close()
    gc.disable()
    try:
        del owner
        assert known() is None
    finally:
        gc.enable()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put off"), st.integers(0, 9)),
        st.tuples(st.just("lift"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 9)),
    )
)


@given(STEPS)
def test_it_is_missed_as_a_timer_made_anew_each_time_would_be(steps: list[tuple[str, int]]) -> None:
    loop, deadline, missed = build_deadline()
    due, expected = 0.0, list[float]()
    for step, seconds in steps:
        if step == "put off":
            deadline.restart(float(seconds))
            due = loop.now + seconds
        elif step == "lift":
            deadline.stop()
            due = 0.0
        else:
            loop.run(loop.now + seconds)
            if due and due <= loop.now:
                expected.append(due)
                due = 0.0
        assert len(loop.waiting) <= 1
    assert missed == expected
