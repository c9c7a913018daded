"""`--engine sagemaker` on spot instances that are taken back: the job goes on from its checkpoint, and is Completed."""

from __future__ import annotations

import os
import time

import pytest
from effort import SOAK
from sagemaker_loop import BUCKET, GROUPS, Loop, agent_inside, lines, members

from headrace.hosting.supervision.instances import INTERRUPTION
from headrace.runs import CauseKind, Run, RunPaths, Status
from serve_process import wait_for

pytestmark = pytest.mark.namespaces

SCRIPT = """
import os, signal, sys, time
checkpoint = os.path.join("/opt/ml/checkpoints", os.environ["SM_CURRENT_HOST"])
begun = int(open(checkpoint).read()) if os.path.exists(checkpoint) else 0
step = begun
def save(*_):
    with open(checkpoint, "w") as file:
        file.write(str(step))
    print("was told in time", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
print(f"begins at {begun}", flush=True)
while begun == 0 or step < begun + 5:
    step += 1
    time.sleep(0.1)
with open(os.path.join(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]), "w") as file:
    file.write("trained")
"""
HOSTS = 2 if SOAK else 1
SPOT = {
    "instance_groups": GROUPS[-HOSTS:],
    "use_spot_instances": True,
    "stopping_condition": {"max_run": 600, "max_wait": 1200},
    "checkpoint_s3_uri": f"s3://{BUCKET}/checkpoints",
}


def test_an_interruption_is_told_to_the_programs_and_the_job_goes_on_from_its_checkpoint(loop: Loop) -> None:
    handle = loop.start(loop.job(SCRIPT, "spot", **SPOT))
    wait_for(lambda: sum("begins at 0" in line for line in lines(handle)) == HOSTS or handle.run.finished)
    outer = Run(RunPaths(loop.outer_run()))
    os.kill(outer.header.supervisor_pid, INTERRUPTION)
    assert handle.wait(120) is Status.COMPLETED, (handle.cause, loop.service.log)

    found = lines(handle)
    assert sum("was told in time" in line for line in found) == HOSTS
    begun = [int(line.rpartition(" ")[2]) for line in found if "begins at" in line]
    assert begun[:HOSTS] == [0] * HOSTS
    assert len(begun) == 2 * HOSTS
    assert min(begun[HOSTS:]) > 0, "from the checkpoint"
    described = loop.described(handle)
    passed = [each["Status"] for each in described["SecondaryStatusTransitions"]]
    interrupted = passed.index("Interrupted")
    assert "Training" in passed[:interrupted]
    assert passed[interrupted + 1] == "Restarting"
    assert passed[-1] == described["SecondaryStatus"] == "Completed"
    archive = loop.bucket / "out" / handle.id / "output" / "model.tar.gz"
    assert set(members(archive)) == {f"algo-{number + 1}" for number in range(HOSTS)}
    state = handle.run.state()
    assert (state.attempt, {program.attempt for program in state.programs}) == (2, {1, 2})


if SOAK:

    def test_a_host_that_is_lost_without_an_interruption_fails_the_job_at_once(loop: Loop) -> None:
        script = "import time\nprint('runs', flush=True)\ntime.sleep(600)\n"
        handle = loop.start(loop.job(script, "lost", **SPOT))
        wait_for(lambda: sum(line.endswith("runs") for line in lines(handle)) == 2 or handle.run.finished)
        agent_inside("algo-2").kill()
        began = time.monotonic()
        assert handle.wait(60) is Status.FAILED
        assert handle.cause is not None
        assert handle.cause.kind is CauseKind.HOST_LOST
        (ended,) = [each.start for each in handle.run.state().transitions if each.status.value == "Failed"]
        assert time.monotonic() - began < 14, ended
