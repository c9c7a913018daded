"""A job on SageMaker needs what `headrace plan` says that it needs, and no more; and hosts whose record is lost."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from asked_actions import used_actions
from sagemaker_loop import BUCKET, GROUPS, Loop, open_service

from headrace import engines
from headrace.engines.documents import Permission
from headrace.engines.host_start import CONTAINER
from headrace.engines.sagemaker.boto_service import BotoService
from headrace.engines.sagemaker.sagemaker_ticket import ServiceTicket
from headrace.engines.ticket import read_ticket
from headrace.insight import report
from headrace.insight.render.run_documents import report_tables
from headrace.processes.process_table import scan
from headrace.runs import Status, of_kind
from headrace.runs.metric_records import PlatformMinute
from serve_process import ServeProcess, wait_for

pytestmark = pytest.mark.namespaces


@pytest.fixture(scope="module")
def service() -> Iterator[ServeProcess]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HEADRACE_LOG", "debug")
        yield from open_service()


def test_the_actions_that_are_used_are_those_that_are_shown(loop: Loop) -> None:
    (loop.bucket / "data").mkdir()
    (loop.bucket / "data" / "rows").write_text("1 2 3")
    job = loop.job(
        "import os; open(os.environ['SM_MODEL_DIR'] + '/w-' + os.environ['SM_CURRENT_HOST'], 'w').write('w')",
        "rights",
        inputs={"training": f"s3://{BUCKET}/data"},
        tags=[{"key": "team", "value": "mill"}],
        instance_groups=GROUPS[1:],
    )
    handle = loop.start(job)
    assert handle.wait(60) is Status.COMPLETED, (handle.cause, loop.service.log)
    (billed,) = handle.run.state().billed
    assert billed.training_seconds > 0
    basic = used_actions(loop.service.log)
    shown = engines.plan(job, "sagemaker").submission.permissions
    passed = {"iam:PassRole", "sagemaker:AddTags"}  # the service looks at these when the job is created
    assert basic["user"] | passed == actions(shown["submitter"], optional=False)
    assert basic["program"] == {
        action for each in shown["role"] if not (each.optional or each.service) for action in each.actions
    }

    ticket = read_ticket(handle.paths, ServiceTicket)
    asked = BotoService(ticket.service)
    assert "training_job.json" in {document.name for document in engines.logs(handle.run)}
    assert not asked.stop(ticket.name)
    assert list(asked.names(ticket.name)) == [ticket.name]
    begin, end = billed.started or 0.0, billed.ended or 0.0
    assert asked.host_points(ticket.name, "algo-1", "CPUUtilization", begin, end)
    every = used_actions(loop.service.log)["user"] | passed
    never = {"s3:AbortMultipartUpload"}  # of an upload in parts that fails
    assert every | never == actions(shown["submitter"]), "no more and no less"
    asked.close()


def actions(permissions: tuple[Permission, ...], *, optional: bool = True) -> set[str]:
    return {action for each in permissions if optional or not each.optional for action in each.actions}


def test_hosts_whose_record_is_lost_with_the_leader_are_reported_as_the_platform_measured_them(loop: Loop) -> None:
    script = "import time\nwhile True:\n    sum(range(100_000))\n    time.sleep(0.02)"  # a tenth of a CPU
    handle = loop.start(loop.job(script, "gone", record={"uri": f"s3://{BUCKET}/out/headrace/runs", "interval": 600}))
    wait_for(lambda: len(programs(handle.id)) == 2, 60)
    service = BotoService(read_ticket(handle.paths, ServiceTicket).service)
    for host in ("algo-1", "algo-2"):
        asked = (handle.id, host, "CPUUtilization")
        wait_for(lambda asked=asked: service.host_points(*asked, time.time() - 60, time.time()))
    service.close()
    for pid in programs(handle.id):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(loop.bucket / "out" / "headrace" / "runs", ignore_errors=True)  # what was stored at the start, too
    assert handle.wait(60) is Status.FAILED
    assert not handle.run.host_seconds(), "the record is lost"
    found = report(handle.run)
    assert {(each.group, each.host, each.source) for each in found.platform} == {
        ("unknown", "algo-1", "CloudWatch"), ("unknown", "algo-2", "CloudWatch"),
    }  # fmt: skip
    for minutes in of_kind(handle.run.metrics(), PlatformMinute).values():
        assert all(minute.cpu and minute.cpu > 1 and minute.memory for minute in minutes), minutes  # of a busy machine
    (sheet,) = [each for each in report_tables(found) if each.title.startswith("measured by the platform")]
    assert [row[:3] for row in sheet.rows] == [("unknown", f"algo-{n}", "CloudWatch") for n in (1, 2)]


def programs(run_id: str) -> list[int]:
    """Returns the processes of the hosts of a run in their containers."""
    found = []
    for process in scan():
        try:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):  # another process, which has just ended
            continue
        if CONTAINER.encode() in words and any(run_id.encode() in word for word in words):
            found.append(process.pid)
    return found
