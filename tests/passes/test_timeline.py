import numpy as np

from ringmpi.core.itinerary import Step
from ringmpi.passes import timeline as module
from ringmpi.passes.timeline import RankTimeline


def test_seconds_go_where_they_belong(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(module, "perf_counter", lambda: next(ticks) ** 2)
    timeline, step = RankTimeline(2), Step(1, (), ())
    for timed in (timeline.reading(), timeline.attending(step), timeline.waiting(step), timeline.writing()):
        with timed:
            pass
    counters = timeline.counters()
    assert counters["read_seconds"] == 1
    assert counters["attend_seconds"].tolist() == [0, 5]
    assert counters["wait_seconds"].tolist() == [0, 9]
    assert counters["write_seconds"] == 13


def test_a_save_is_neither_work_nor_waiting_nor_flight(monkeypatch):
    now = 0.0
    monkeypatch.setattr(module, "perf_counter", lambda: now)
    timeline, step = RankTimeline(1), Step(0, (), ())
    for timed in (timeline.attending(step), timeline.waiting(step)):
        timeline.looked(step, under_way=True)
        with timed:
            now += 1.0
            with timeline.saving():
                now += 100.0
            now += 2.0
        timeline.looked(step, under_way=False)
    counters = timeline.counters()
    assert [counters[f"{name}_seconds"].tolist() for name in ("attend", "wait", "flight")] == [[3.0], [3.0], [6.0]]


def test_times_of_several_readings_add_up(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(module, "perf_counter", lambda: next(ticks))
    timeline = RankTimeline(1)
    for _ in range(3):
        with timeline.reading():
            pass
    assert timeline.counters()["read_seconds"] == 3


def test_counters_of_all_ranks_stack():
    counters = [RankTimeline(3).counters() for _ in range(4)]
    assert np.stack([one["read_seconds"] for one in counters]).shape == (4,)
    assert np.stack([one["attend_seconds"] for one in counters]).shape == (4, 3)


def test_a_watcher_hears_of_every_kernel_call():
    timeline, heard = RankTimeline(2), []
    timeline.attended(Step(0, (), ()), 3)
    timeline.watched_by(heard.append)
    timeline.attended(Step(0, (), ()), 4)
    timeline.attended(Step(1, (), ()), 5)
    assert heard == [4, 5]
    assert timeline.pairs_attended.tolist() == [7, 5]


def test_flight_is_the_time_in_which_any_message_is_under_way(monkeypatch):
    now = 0.0
    monkeypatch.setattr(module, "perf_counter", lambda: now)
    timeline, (first, second) = RankTimeline(2), (Step(index, (), ()) for index in range(2))
    timeline.looked(first, under_way=False)
    now = 1.0
    timeline.posted(first, [], [])
    now = 3.0
    timeline.posted(first, [], [])  # a second one at once is no more time
    now = 4.0
    timeline.looked(first, under_way=True)
    now = 6.0
    timeline.looked(second, under_way=True)  # a hop of several steps
    now = 9.0
    timeline.looked(second, under_way=False)
    now = 20.0
    timeline.looked(second, under_way=False)
    assert timeline.counters()["flight_seconds"].tolist() == [3, 5]
