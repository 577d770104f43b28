"""Who is let in by a controller that listens for other machines, and what it says where they do not come."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workers.processes import wait_until
from tinyshard import worker
from tinyshard.core.errors import DeviceLostError, RuntimeStateError
from tinyshard.runtime import wire
from tinyshard.runtime.controller.watchdog import STOPPED
from tinyshard.runtime.launch import agent, connect, remote_workers
from tinyshard.runtime.launch.connect import versions
from tinyshard.runtime.launch.hosts import Hosts
from tinyshard.runtime.launch.remote_workers import RemoteWorkers, gather

SECRET = b"a secret of enough characters"
FACTS = {"count": 2, "name": "alpha", "gpus": 0, **versions()}
WITHIN_S = 20.0


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """A controller that listens on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    made = Hosts(f"127.0.0.1:{port}", SECRET)
    yield made
    if not made.is_closed:
        made.close()


@pytest.fixture
def come(hosts: Hosts) -> Iterator[Callable[..., socket.socket]]:
    """Connects to it."""
    with contextlib.ExitStack() as opened:
        yield lambda *hello: opened.enter_context(connect.connect(connect.parse(hosts.address), SECRET, hello))


def gathered(hosts: Hosts, devices: int | None = None, within_s: float = WITHIN_S) -> Any:
    return gather(hosts, devices, within_s)


def test_agents_are_gathered_by_rank_whatever_the_order_in_which_they_come(
    hosts: Hosts, come: Callable[..., socket.socket]
) -> None:
    for rank in (2, 0, 1):
        come("agent", rank, {**FACTS, "count": 3})
    assert [agent.rank for agent in gathered(hosts)] == [0, 1, 2]
    assert [agent.rank for agent in gathered(hosts, 2)] == [0, 1]
    assert {agent.place for agent in gathered(hosts)} == {"127.0.0.1 (alpha)"}
    with pytest.raises(RuntimeStateError, match="4 devices; 3 workers were started"):
        gathered(hosts, 4)


def test_the_error_says_who_has_come_who_is_missing_and_who_was_refused(
    hosts: Hosts, come: Callable[..., socket.socket]
) -> None:
    with pytest.raises(RuntimeStateError, match="no worker has come"):
        gathered(hosts, within_s=0)
    come("agent", 0, {**FACTS, "count": 4})
    come("agent", 2, {**FACTS, "count": 4})
    with pytest.raises(connect.RefusedError):
        connect.connect(
            connect.parse(hosts.address), b"a wrong secret, long enough", ("agent", 1, {**FACTS, "count": 4})
        )
    end_s = time.monotonic() + WITHIN_S
    while True:  # the list of refused is filled by a thread
        with pytest.raises(RuntimeStateError) as raised:
            gathered(hosts, within_s=0)
        if "refused" in str(raised.value) or time.monotonic() > end_s:
            break
    for words in ("2 of 4", "127.0.0.1 (alpha): worker 0, 2", "missing: worker 1, 3", "refused: 127.0.0.1", "torchrun"):
        assert words in str(raised.value)


def test_an_agent_of_another_torch_is_refused_with_both_versions(come: Callable[..., socket.socket]) -> None:
    with pytest.raises(connect.RefusedError, match=rf"torch 1\.0, the controller {versions()['torch']}"):
        come("agent", 0, {**FACTS, "torch": "1.0"})


def test_an_agent_may_come_again_when_the_one_with_its_rank_has_gone(
    hosts: Hosts, come: Callable[..., socket.socket]
) -> None:
    first = come("agent", 0, FACTS)
    (there,) = gathered(hosts, 1)
    with pytest.raises(ConnectionError, match="worker 0 is there already") as raised:
        come("agent", 0, FACTS)
    assert not isinstance(raised.value, connect.RefusedError)
    with pytest.raises(ConnectionError, match="one of 3 workers, those that are there are of 2"):
        come("agent", 1, {**FACTS, "count": 3})
    first.close()
    wait_until(lambda: not there.is_there, "its end is noticed")
    assert there.lost == "the process that had started it on 127.0.0.1 (alpha) ended"
    come("agent", 0, FACTS)
    assert gathered(hosts, 1) != [there]


def test_a_worker_s_connection_is_let_in_beside_its_agent_alone(
    hosts: Hosts, come: Callable[..., socket.socket]
) -> None:
    with pytest.raises(connect.RefusedError, match="belongs to no agent"):
        come("channel", 0, {})
    come("agent", 0, {**FACTS, "count": 1})
    with pytest.raises(connect.RefusedError, match="belongs to no agent"):
        come("another role", 0, {})
    come("channel", 0, {})


def test_a_start_that_is_called_off_kills_what_it_had_started(hosts: Hosts, come: Callable[..., socket.socket]) -> None:
    agent = come("agent", 0, {**FACTS, "count": 1})
    workers = RemoteWorkers(gathered(hosts), "cpu", "gloo")
    links = workers.links()
    assert next(links) is None
    del links
    facts = {"device": 0, "gpu": None, "count": 1, "collectives": "gloo", "store": None, "limit_nbytes": None}
    assert wire.receive(agent)[1:] == ("start", facts)
    assert wire.receive(agent)[1:] == ("kill all", None)


def test_an_agent_that_may_fork_no_more_says_so(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = threading.Thread(target=agent.serve, args=(connect.parse(hosts.address), SECRET, (0, 1), WITHIN_S))
    monkeypatch.setattr(os, "fork", no_more)
    serving.start()
    with pytest.raises(DeviceLostError, match=r"could not be forked on 127.0.0.1 \(.*\): .* unavailable"):
        list(RemoteWorkers(gathered(hosts), "cpu", "gloo").links())
    hosts.close()
    serving.join()


def test_two_threads_may_ask_one_agent_and_each_gets_its_own_answer(
    hosts: Hosts, come: Callable[..., socket.socket]
) -> None:
    """A pool that ends may still kill its workers while the next one starts its own."""
    end = come("agent", 0, {**FACTS, "count": 1})
    (agent,) = gathered(hosts)
    answers: dict[str, Any] = {}

    def ask(word: str) -> None:
        answers[word] = agent.ask(word, None, WITHIN_S)

    threads = [threading.Thread(target=ask, args=(word,)) for word in ("kill", "there")]
    for thread in threads:
        thread.start()
    orders = [wire.receive(end) for _ in threads]
    for number, word, _ in reversed(orders):
        wire.send(end, (number, f"done: {word}"))
    for thread in threads:
        thread.join()
    assert answers == {"kill": "done: kill", "there": "done: there"}
    given_up = agent.order("there")
    assert agent.answer(given_up, 0) is None and agent.is_there
    wire.send(end, (given_up, True))
    number = agent.order("kill")
    wire.send(end, (number, 7))
    assert agent.answer(number, WITHIN_S) == 7


def no_more() -> int:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def test_an_agent_that_says_nothing_to_a_start_is_lost_in_time(
    hosts: Hosts, come: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_workers, "_START_WITHIN_S", 0.3)
    come("agent", 0, {**FACTS, "count": 1})
    workers = RemoteWorkers(gathered(hosts), "cpu", "gloo")
    with pytest.raises(DeviceLostError, match="the connection to its machine"):
        list(workers.links())


def test_all_agents_of_a_machine_that_was_lost_are_and_those_that_live_come_again(
    hosts: Hosts, come: Callable[..., socket.socket]
) -> None:
    ends = [come("agent", rank, FACTS) for rank in range(2)]
    workers = RemoteWorkers(gathered(hosts), "cpu", "gloo")
    broken = TimeoutError("what the system raises if a connection is not acknowledged")
    link: Any = SimpleNamespace(device=1, pid=7, broken=broken)
    lost = "the connection to its machine 127.0.0.1 (alpha) was lost (CPU 0-1 there)"
    assert workers.end(link) == workers.end(link) == lost
    for rank, end in enumerate(ends):
        assert end.recv(1) == b""
        come("agent", rank, FACTS)
    assert [agent.lost for agent in gathered(hosts)] == ["", ""]


def test_a_silent_device_is_stopped_if_its_agent_answers_and_else_its_connection_is_lost(
    hosts: Hosts, come: Callable[..., socket.socket]
) -> None:
    agent = come("agent", 0, {**FACTS, "count": 1})
    workers = RemoteWorkers(gathered(hosts), "cpu", "gloo")
    lost = "the connection to 127.0.0.1 (alpha) is lost or cut"
    assert workers.why_silent(0) == lost
    late, _, _ = wire.receive(agent)

    def answer() -> None:
        wire.send(agent, (late, True))  # to the order before, which was given up
        wire.send(agent, (wire.receive(agent)[0], True))

    answering = threading.Thread(target=answer)
    answering.start()
    assert workers.why_silent(0) == f"{STOPPED} on 127.0.0.1 (alpha)"
    answering.join()


def test_closing_tells_the_agents_and_frees_the_port(hosts: Hosts, come: Callable[..., socket.socket]) -> None:
    agent = come("agent", 0, {**FACTS, "count": 1})
    gathered(hosts)
    hosts.close()
    assert wire.receive(agent)[1:] == ("leave", None)
    assert agent.recv(1) == b""
    again = Hosts(hosts.address, SECRET)
    again.close()


def test_a_port_in_use_is_an_error_that_says_so(hosts: Hosts) -> None:
    with pytest.raises(RuntimeStateError, match="cannot listen for other machines"):
        Hosts(hosts.address, SECRET)


def test_strangers_who_say_nothing_hold_nothing_up(hosts: Hosts, come: Callable[..., socket.socket]) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(10):
            opened.enter_context(socket.create_connection(connect.parse(hosts.address)))
        come("agent", 0, {**FACTS, "count": 1})
        assert len(gathered(hosts)) == 1


@pytest.mark.parametrize("word", ["nan", "-3", "soon"])
def test_what_is_no_number_of_seconds_is_refused_by_a_worker(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        worker.main(["--controller", "127.0.0.1:1", "--wait", word])
    assert f"argument --wait: {word!r} is not a number of seconds" in capsys.readouterr().err
