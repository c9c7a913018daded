"""A proxy stands for its program, and nobody else gets anything from the agent's socket."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from headrace.agent.host import launcher_proxy
from headrace.agent.launchers.launched_ranks import LauncherSocket
from headrace.agent.program_specs import abstract_socket

SECRET = b"\x01" * 32


class Agent:
    """Serves one request at a time, as told."""

    def __init__(self, name):
        self.name, self.requests, self.callers = name, [], []
        self.port = LauncherSocket(name, SECRET, self.serve)

    def serve(self, request, caller):
        if request.get("kind") not in ("rank", "daemon"):
            raise ValueError("not a request")
        self.requests.append(request)
        self.callers.append(caller)


def run(scenario, tmp_path):
    """Runs a scenario with an open port; it gets the agent and a function that starts a proxy."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET.hex() + "\n")
    name = abstract_socket(SECRET, f"test-{os.getpid()}-{os.urandom(4).hex()}", "algo-1", "agent")
    started = []

    def start(*arguments, **variables):
        known = {launcher_proxy.AGENT_VARIABLE: name, launcher_proxy.SECRET_VARIABLE: str(secret), **variables}
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", launcher_proxy.__file__, *arguments],
            env=os.environ | known,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    async def play():
        agent = Agent(name)
        await agent.port.open()
        try:
            await scenario(agent, start)
        finally:
            await agent.port.close()

    try:
        asyncio.run(asyncio.wait_for(play(), 30))
    finally:
        for process in started:
            process.kill()
            process.communicate()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


async def end_of(process):
    return await asyncio.to_thread(process.wait)


@pytest.mark.parametrize(("exit_code", "number", "seen"), [(0, None, 0), (3, None, 3), (None, 9, -9), (None, 11, -11)])
def test_a_proxy_ends_as_its_program_did(tmp_path, exit_code, number, seen):
    async def scenario(agent, start):
        process = start("rank", "mpi4py", OMPI_COMM_WORLD_RANK="2", ODD="\udcff\n\"'")
        await until(lambda: agent.callers)
        request = agent.requests[0]
        assert request["runner"] == ["mpi4py"]
        assert request["variables"]["OMPI_COMM_WORLD_RANK"] == "2"
        assert request["variables"]["ODD"] == "\udcff\n\"'"
        assert request["cpus"] == sorted(os.sched_getaffinity(0))
        agent.callers[0].answer(exit_code, number)
        assert await end_of(process) == seen

    run(scenario, tmp_path)


def test_a_proxy_hands_signals_on_and_says_what_the_agent_says(tmp_path):
    async def scenario(agent, start):
        process = start("daemon", "algo-2", "orted", "a b")
        await until(lambda: agent.callers)
        assert agent.requests[0] == {"kind": "daemon", "host": "algo-2", "command": ["orted", "a b"]}
        signals = []
        agent.callers[0].on_signal = signals.append
        for number in (signal.SIGTERM, signal.SIGUSR1):
            process.send_signal(number)
            await until(lambda number=number: number in signals)
        agent.callers[0].refuse("no such host")
        assert await end_of(process) == 255
        assert "error: no such host" in process.stderr.read()

    run(scenario, tmp_path)


def test_the_agent_hears_when_a_proxy_is_killed(tmp_path):
    async def scenario(agent, start):
        process = start("rank")
        await until(lambda: agent.callers)
        gone = []
        agent.callers[0].on_gone = lambda: gone.append(True)
        process.kill()
        await until(lambda: gone)

    run(scenario, tmp_path)


def test_a_proxy_without_an_agent_fails(tmp_path):
    async def scenario(agent, start):
        process = start("rank", HEADRACE_AGENT="@headrace/nobody")
        assert await end_of(process) == 255
        assert "cannot be asked" in process.stderr.read()
        process = start("rank")
        await until(lambda: agent.callers)
        await agent.port.close()
        assert await end_of(process) == 255
        assert "is gone" in process.stderr.read()

    run(scenario, tmp_path)


def talk(name, data):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + name[1:])
        connection.settimeout(10)
        try:
            connection.sendall(data)
            return connection.recv(1 << 16)
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    "request_",
    [
        {"kind": "daemon", "host": "algo-2", "command": ["orted"]},
        {"kind": "daemon", "host": "algo-2", "command": ["orted"], "secret": "00" * 32},
        {"kind": "rank", "secret": ""},
        {"kind": "rank", "secret": ["01"]},
        {"kind": "rank", "secret": None},
        ["rank"],
        "rank",
        7,
    ],
    ids=str,
)
def test_who_does_not_know_the_secret_gets_nothing(tmp_path, request_, logged):
    async def scenario(agent, start):
        answer = await asyncio.to_thread(talk, agent.name, json.dumps(request_).encode() + b"\n")
        assert answer == b""
        assert not agent.requests
        assert agent.port.refused == 1
        assert "refused a caller" in logged()[0]

    run(scenario, tmp_path)


@pytest.mark.parametrize("data", [b"\n", b"\x00\xff\n", b"[" * 200_000 + b"\n", b"GET / HTTP/1.1\r\n\r\n"], ids=len)
def test_noise_is_refused(tmp_path, data):
    async def scenario(agent, start):
        assert await asyncio.to_thread(talk, agent.name, data) == b""
        await until(lambda: agent.port.refused == 1)

    run(scenario, tmp_path)


def test_a_caller_that_says_nothing_is_sent_away(tmp_path, monkeypatch, logged):
    monkeypatch.setattr("headrace.agent.launchers.launched_ranks.FIRST_LINE_SECONDS", 0.2)

    async def scenario(agent, start):
        assert await asyncio.to_thread(talk, agent.name, b'{"kind"') == b""
        assert logged() == ["agent's socket: refused a caller: it sent nothing in time"]

    run(scenario, tmp_path)


def test_a_caller_of_another_user_is_refused(tmp_path, monkeypatch):
    async def scenario(agent, start):
        monkeypatch.setattr("headrace.agent.launchers.launched_ranks.uid_of_peer", lambda _: os.getuid() + 1)
        request = {"kind": "rank", "secret": SECRET.hex()}
        assert await asyncio.to_thread(talk, agent.name, json.dumps(request).encode() + b"\n") == b""
        assert not agent.requests

    run(scenario, tmp_path)


def test_a_request_that_makes_no_sense_is_refused_in_words(tmp_path):
    async def scenario(agent, start):
        request = {"kind": "shell", "secret": SECRET.hex()}
        answer = json.loads(await asyncio.to_thread(talk, agent.name, json.dumps(request).encode() + b"\n"))
        assert answer == {"exit_code": 255, "signal": None, "says": "error: not a request"}

    run(scenario, tmp_path)


def test_the_name_fits_into_an_address():
    assert abstract_socket(SECRET, "job-1", "algo-1", "agent").startswith("@headrace/job-1/algo-1/agent/")
    long = abstract_socket(SECRET, "x" * 200, "algo-1")
    assert len(long) <= 108
    assert long != abstract_socket(SECRET, "x" * 200, "algo-2")
