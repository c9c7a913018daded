"""Which isolation a job gets, and what hosts are told."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from effort import SOAK
from machine import Machine
from stage import groups, text

from headrace import engines
from headrace.cli.views import doctor_tables
from headrace.cli.views.table import show
from headrace.engines.local.isolation_plan import choose, found_here
from headrace.errors import EngineRefused
from headrace.hosting.isolation import network, network_layout, probing
from headrace.hosting.isolation.network_layout import (
    Instance,
    choose_network,
    hosts_text,
    resolver_text,
    shared_hosts_text,
    shown_below_tmp,
)
from headrace.hosting.isolation.probing import Findings
from headrace.instance.launch_plan import NAMESPACE, NO_ISOLATION, SHARED_NETWORK, Isolation
from headrace.runs import Status, runs_dir
from patience import until

ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
DEFAULT = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"


def route(destination: str, mask: str) -> str:
    return f"eth0\t{destination}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n"


INTERRUPTED = """
import signal, sys, time
from headrace.hosting.isolation import probing
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))  # as a command that ends in order
words = f"import time; open({sys.argv[1]!r}, 'w').close(); time.sleep(1.0)"
probing.module_command = lambda *_, **__: [sys.executable, "-c", words]
print(probing._try(False), flush=True)
"""


def test_ctrl_c_in_a_terminal_is_not_why_a_machine_cannot_separate_hosts(tmp_path: Path) -> None:
    began = tmp_path / "began"
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(began)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        until(began.exists, what="the trial")
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    interrupted, answer = out.splitlines()
    assert interrupted == "interrupted"
    assert answer == "('', '')"


DROPS = {"data": "tcp flags & psh == psh drop", "everything": "meta l4proto tcp drop"}


@pytest.mark.namespaces
@pytest.mark.needs("way out")
@pytest.mark.parametrize(
    ("dropped", "step"), [("data", "have a byte back from"), *([("everything", "connect to")] if SOAK else [])]
)
def test_a_way_out_that_connects_and_carries_no_data_is_none(dropped: str, step: str, monkeypatch) -> None:
    rules = f"table ip broken {{ chain out {{ type filter hook forward priority 0; {DROPS[dropped]}; }}; }}"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # the process that makes the network has another /tmp
        nft = Path(folder, "nft")
        nft.write_text(f"#!/bin/sh\n{{ cat; echo '{rules}'; }} | {network.program('nft')} -f -\n")
        nft.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        probing.examine.cache_clear()
        try:
            assert f"could not {step} this machine" in probing.examine().outward
            assert choose("auto").level == SHARED_NETWORK
        finally:
            probing.examine.cache_clear()


@pytest.mark.namespaces
@pytest.mark.needs("way out")
def test_what_works_is_tried_once_until_something_changes_that_it_depends_on(tmp_path, monkeypatch) -> None:
    def tries() -> int:
        """Asks as a new process does. Returns how many instances were made for the answer."""
        made.clear()
        probing.examine.cache_clear()
        findings.append(probing.examine())
        return len(made)

    made: list[bool] = []
    findings: list[Findings] = []
    try_one = probing._try
    monkeypatch.setattr(probing, "_try", lambda *args, **more: made.append(True) or try_one(*args, **more))
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    try:
        assert [tries(), tries()] == [1, 0]
        (tmp_path / "programs").mkdir()
        (tmp_path / "programs" / "nft").symlink_to(str(network.program("nft")))
        monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
        assert [tries(), tries()] == [1, 0]
        (tmp_path / probing.TRIED).write_text("{")
        assert [tries(), tries()] == [1, 0]
        found_here()
        assert not made, "this process knows"
        probing.examine.cache_clear()
        findings.append(found_here())
        assert made, "as `headrace doctor` asks"
        assert tries() == 0
        assert len(set(map(repr, findings))) == 1
    finally:
        probing.examine.cache_clear()


@pytest.mark.parametrize(
    ("wanted", "findings", "level", "why"),
    [
        ("auto", Findings("", "", True, False), NAMESPACE, "namespaces work here"),
        ("auto", Findings("", "no default route", False, True), NAMESPACE, "namespaces work here"),
        ("auto", Findings("", "pasta is not installed", True, True), SHARED_NETWORK, "pasta is not installed"),
        ("auto", Findings("no bridge", "no bridge", True, True), SHARED_NETWORK, "no bridge"),
        ("auto", Findings("unshare: no", "", True, True, "", "unshare: no"), NO_ISOLATION, "unshare: no"),
        ("none", Findings("", "", True, True), NO_ISOLATION, "says so"),
        ("namespace", Findings("", "", True, True), NAMESPACE, "says so"),
        ("namespace", Findings("", "pasta is not installed", True, True), NAMESPACE, "says so"),
        ("shared_network", Findings("", "", True, True), SHARED_NETWORK, "says so"),
    ],
)
def test_auto_takes_the_best_level_that_loses_no_way_out(monkeypatch, wanted, findings, level, why):
    monkeypatch.setattr(probing, "examine", lambda: findings)
    chosen = choose(wanted)
    assert chosen.level == level
    assert why in chosen.why
    if level == NAMESPACE:
        assert (chosen.outward, chosen.why_not_outward) == (not findings.outward, findings.outward)


NO_NAMESPACES = Findings("unshare: not permitted", "", True, True, "", "unshare: not permitted")


@pytest.mark.parametrize("wanted", [NAMESPACE, SHARED_NETWORK])
def test_namespaces_that_do_not_work_are_refused_and_nothing_is_started(stage, monkeypatch, wanted):
    monkeypatch.setattr(probing, "examine", lambda: NO_NAMESPACES)
    with pytest.raises(EngineRefused, match="does not work here: unshare: not permitted") as caught:
        engines.start(stage.job("", local={"isolation": wanted}))
    assert "engines.local.isolation" in caught.value.hint
    assert not runs_dir().exists()


def test_a_bandwidth_is_never_dropped_silently(stage, monkeypatch):
    monkeypatch.setattr(probing, "examine", lambda: NO_NAMESPACES)
    local = {"isolation": "auto", "network": {"dnn": {"bandwidth": "40mbit"}}}
    with pytest.raises(EngineRefused, match=r"with isolation by namespaces only: .* unshare: not permitted"):
        engines.start(stage.job("", instance_groups=groups(dnn=2), local=local))
    assert not runs_dir().exists()


@pytest.mark.namespaces
def test_the_machine_is_asked_and_its_answer_names_the_limit():
    """In a user namespace that may not make another, somebody without capabilities."""
    script = f"""
import ctypes, os
from headrace.hosting.isolation import probing, syscalls
syscalls.become_root()
open("/proc/sys/user/max_user_namespaces", "w").write("0")
assert ctypes.CDLL(None).prctl(47, 4, 0, 0, 0) == 0
for capability in range(64):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv({sys.executable!r}, [{sys.executable!r}, "-c", '''
import ctypes
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
assert ctypes.CDLL(None).capset(ctypes.byref(Header(0x20080522, 0)), (ctypes.c_uint32 * 6)()) == 0
from headrace.hosting.isolation import probing
print(probing.examine().shared_network)
'''])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "unshare" in done.stdout
    assert "user.max_user_namespaces is 0" in done.stdout


BRIDGE = """
import fcntl, os, socket, time
from headrace.hosting.isolation import syscalls
from headrace.hosting.isolation.enter_namespaces import lay_cable
from headrace.hosting.isolation.network_layout import Instance, Layout
from headrace.hosting.isolation.netlink import Netlink
syscalls.become_root()
syscalls.unshare(syscalls.CLONE_NEWNET)
with Netlink() as net:
    net.add_bridge("bridge")
job, bridge = os.open("/proc/self/ns/net", os.O_RDONLY), socket.if_nametoindex("bridge")
"""


def in_network(script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a network of its own that has a bridge."""
    command = [sys.executable, "-c", BRIDGE + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.namespaces
def test_the_next_attempt_of_a_host_gets_a_cable_while_that_of_the_last_is_still_there():
    script = """
layout = Layout(True, False, False, "10.77.255.254", (), "", (Instance("algo-1", "10.77.0.1", ""),))
former = []
for _ in range(3):
    syscalls.unshare(syscalls.CLONE_NEWNET)
    former.append(os.open("/proc/self/ns/net", os.O_RDONLY))
    lay_cable(layout, "algo-1", job, bridge)
    print([name for _, name in socket.if_nameindex() if name == "eth0"])
syscalls.setns(former[0], syscalls.CLONE_NEWNET)
print([name for _, name in socket.if_nameindex() if name == "eth0"])
"""
    done = in_network(script)
    assert done.stdout.splitlines() == ["['eth0']"] * 3 + ["[]"]


@pytest.mark.namespaces
def test_the_bridge_keeps_its_hardware_address_when_a_host_leaves():
    """Linux gives a bridge the lowest address of its cables: a host that leaves would take away the one others know."""
    script = """
def address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        return fcntl.ioctl(asked, 0x8927, b"bridge".ljust(256, bytes(1)))[18:24].hex()  # SIOCGIFHWADDR
with Netlink() as net:
    found = {address()}
    hosts = tuple(Instance(f"algo-{n}", f"10.77.0.{n}", "") for n in range(1, 9))
    layout = Layout(True, False, False, "10.77.255.254", (), "", hosts)
    kept = []
    for host in hosts:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        kept.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        lay_cable(layout, host.name, job, bridge)
        syscalls.setns(job, syscalls.CLONE_NEWNET)
        found.add(address())
    for host in hosts:
        net.remove(socket.if_nametoindex(host.name))
        found.add(address())
print(len(found))
"""
    done = in_network(script)
    assert done.stdout.strip() == "1"


@pytest.mark.namespaces
def test_a_host_reaches_one_that_comes_a_moment_later_as_soon_as_it_is_there():
    """Linux drops what a new link sends before it is up, and asks for the address of an absent host once a second."""
    script = """
hosts = (Instance("algo-1", "10.77.0.1", ""), Instance("algo-2", "10.77.0.2", ""))
layout = Layout(True, False, False, "10.77.255.254", (), "", hosts)
syscalls.unshare(syscalls.CLONE_NEWNET)
with Netlink() as lone:
    lone.turn(socket.if_nametoindex("lo"), on=True)
    lone.await_running(socket.if_nametoindex("lo"), 0.0)
lay_cable(layout, "algo-2", job, bridge)
early = socket.socket()
early.setblocking(False)
early.connect_ex(("10.77.0.1", 6000))  # it asks now for the address of algo-1
time.sleep(0.2)
syscalls.unshare(syscalls.CLONE_NEWNET)
lay_cable(layout, "algo-1", job, bridge)
listener = socket.create_server(("10.77.0.1", 6000))
listener.settimeout(5)
begun = time.monotonic()
listener.accept()
print(f"{time.monotonic() - begun:.3f}")
with Netlink() as net:
    net.turn(socket.if_nametoindex("eth0"), on=False)
    try:
        net.await_running(socket.if_nametoindex("eth0"), 0.1)
    except TimeoutError as error:
        print(error)
"""
    done = in_network(script)
    waited, late = done.stdout.splitlines()
    assert float(waited) < 0.5
    assert "carries nothing 0.1 s after" in late


def test_a_way_out_needs_two_programs_and_a_device(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(network, "DEVICE", "/dev/no/such")
    assert network.missing() == [
        "pasta is not installed (Debian and Ubuntu: apt install passt)",
        "nft is not installed (Debian and Ubuntu: apt install nftables)",
        "/dev/no/such does not exist",
    ]


def test_the_jobs_network_is_one_that_the_machine_has_no_route_into():
    assert choose_network(ROUTES + DEFAULT + route("000200C0", "00FFFFFF")) == "10.77"
    assert choose_network(ROUTES + route("00004D0A", "0000FFFF")) == "10.177"
    assert choose_network(ROUTES + route("0000000A", "000000FF")) == "172.29", "10.0.0.0/8 holds both"
    assert network_layout.has_default_route(ROUTES + DEFAULT)
    assert not network_layout.has_default_route(ROUTES + route("000200C0", "00FFFFFF"))


def test_addresses_of_many_hosts_are_all_different():
    addresses = {network_layout.address_of("10.77", number) for number in range(1, 1000)}
    assert len(addresses | {network_layout.gateway_of("10.77")}) == 1000


def test_hosts_find_each_other_and_name_servers_they_can_reach():
    instances = [Instance("algo-1", "10.77.0.1", "/a"), Instance("algo-10", "10.77.0.10", "/b")]
    assert hosts_text(instances, outward=False).splitlines()[2:] == ["10.77.0.1 algo-1", "10.77.0.10 algo-10"]
    assert hosts_text(instances, outward=True).splitlines()[-1] == "169.254.77.1 machine.headrace.internal"
    own = "127.0.0.1 localhost # algo-1\n127.0.1.1 debian\n10.0.0.5 algo-1 other\n10.0.0.6 tracking"
    assert shared_hosts_text([Instance("algo-1", "127.0.1.1", "/a")], own).splitlines() == [
        "127.0.1.1 algo-1",
        "127.0.0.1 localhost # algo-1",
        "127.0.1.1 debian",
        "10.0.0.6 tracking",
    ]
    machine = "search example.org\nnameserver 192.0.2.53\nnameserver 127.0.0.53\n"
    assert resolver_text(machine, outward=True) == "search example.org\nnameserver 192.0.2.53\n"
    assert resolver_text("nameserver 127.0.0.53\n", outward=True) == "nameserver 169.254.77.53\n"
    assert resolver_text(machine, outward=False) == ""


def test_what_is_shown_below_tmp_is_what_is_named_there_and_nothing_above_it(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "c").touch()
    named = [str(tmp_path / "a" / "b" / "new"), str(tmp_path / "a" / "c"), "/tmp/new", "/tmp", "relative", "/usr"]
    if tmp_path.is_relative_to("/tmp"):
        assert shown_below_tmp(named) == (str(tmp_path / "a" / "b"), str(tmp_path / "a" / "c"))
        assert shown_below_tmp([*named, str(tmp_path / "a")]) == (str(tmp_path / "a"),)


@pytest.mark.promise("isolation", "`auto` takes the best isolation that works, and says why it is not a better one")
@pytest.mark.namespaces
def test_without_a_way_out_hosts_share_the_machines_network_only(stage, monkeypatch):
    """As on a machine without pasta: what AWS's own examples count on is there, and the reason says what to install."""
    script = """
    import json, os, socket, time
    me = json.load(open("/opt/ml/input/config/resourceconfig.json"))["current_host"]
    assert me == socket.gethostname() == os.environ["SM_CURRENT_HOST"]
    open("/tmp/who", "x").write(me)
    open("/opt/ml/model/" + me, "x").close()
    if me == "algo-1":
        with socket.create_server(("algo-1", 6000)) as server:
            server.settimeout(60)
            print("heard", server.accept()[0].recv(100).decode(), flush=True)
    else:
        deadline = time.monotonic() + 60
        while True:
            try:
                peer = socket.create_connection(("algo-1", 6000))
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
        peer.sendall(me.encode())
        peer.close()
    assert open("/tmp/who").read() == me
    assert len([name for name in os.listdir("/proc") if name.isdigit()]) < 4, "the machine's processes"
    socket.gethostbyname("localhost")
    """
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setattr(network_layout, "has_default_route", lambda _: True)
    probing.examine.cache_clear()
    machine = Machine()
    try:
        handle = stage.start(script, instance_groups=groups(dnn=2), local={"isolation": "auto"})
    finally:
        probing.examine.cache_clear()
    assert "isolation: shared_network (" in handle.isolation
    assert "pasta is not installed (Debian and Ubuntu: apt install passt)" in handle.isolation
    assert handle.wait(60) is Status.COMPLETED, text(handle)
    assert "heard algo-2" in text(handle, "dnn/algo-1[0]")
    stage.assert_nothing_left(handle)
    machine.assert_unchanged()


def test_doctor_says_what_becomes_of_writes_to_channels(monkeypatch, capsys):
    for why, words in (
        ("", "stays with it"),
        ("no good", "read their input channels: no good"),
    ):
        found = Findings("", "", True, False, why)
        monkeypatch.setattr(probing, "examine", lambda found=found: found)
        show(doctor_tables.isolation_document(doctor_tables.machine_report("", ())))
        assert words in capsys.readouterr().out
    show(doctor_tables.isolation_document(doctor_tables.MachineReport(Isolation(), True)))
    assert "changes your own folder" in capsys.readouterr().out


def test_doctor_says_which_level_works_and_which_a_job_gets(stage):
    path = stage.folder / "job.yaml"
    path.write_text(stage.job('open("/tmp/x", "w")', instance_groups=groups(dnn=2)).to_yaml())
    doctor = [sys.executable, "-m", "headrace.cli", "doctor"]
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}

    def told(*words: str) -> str:
        return subprocess.run([*doctor, *words], env=env, capture_output=True, text=True, timeout=60, check=True).stdout

    for options, begins in [((), "isolation: "), *([(("--output", "json"), "{")] if SOAK else [])]:
        done = subprocess.run([*doctor, *options], env=env, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.startswith(begins)
        assert len(done.stderr.splitlines()) == 1
        assert "no command was given" in done.stderr
        assert done.stderr.endswith("headrace doctor -- python train.py\n")
    done = subprocess.run([*doctor, "--steps", "30"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: --steps is for a command, and none was given\nhint: headrace doctor --steps" in done.stderr
    assert "isolation: none (engines.local.isolation says so)" in told("--job", str(path))
    assert '"level":"none"' in told("--job", str(path), "--output", "json").replace(" ", "").replace("\n", "")
    done = subprocess.run([*doctor, "--job", str(path), "--", "true"], env=env, capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert done.returncode == 2
    assert "hint:" in done.stderr
