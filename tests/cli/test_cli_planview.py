"""A launch plan as people read it."""

from headrace.cli import planview
from headrace.engines.local.limits import Machine
from headrace.engines.local.planning import make_plan
from headrace.job import Job
from headrace.runs import RunPaths


def test_the_plan_shows_the_command_line_of_every_kind_of_program(tmp_path):
    for name in ("train.py", "data.sh"):
        (tmp_path / name).write_text("")
    elastic = {"enabled": True, "processes_per_host": 2, "elastic": {"min_hosts": 1, "max_restarts": 3}}
    kinds = ("data", "dnn", "old")
    groups = [{"instance_group_name": name, "instance_type": "ml.c5.xlarge", "instance_count": 1} for name in kinds]
    groups[0] |= {"entry_point": "data.sh", "hyperparameters": {"note": "a b"}}
    job = Job(
        "job",
        source_dir=str(tmp_path),
        entry_point="train.py",
        hyperparameters={"epochs": 3},
        instance_groups=groups,
        distribution=[
            {"torch_distributed": elastic, "instance_groups": ["dnn"]},
            {"mpi": {"enabled": True, "custom_mpi_options": "-verbose"}, "instance_groups": ["old"]},
        ],
    )
    plan = make_plan(job, RunPaths(tmp_path / "run"), Machine((0, 1)), "py")
    shown = {host.group: host.programs[0] for host in planview.view(job, plan).hosts}
    assert shown["data"].argv == ("bash", "./data.sh", "--epochs", "3", "--note", "a b")
    assert shown["dnn"].stream == "torchrun"
    assert shown["dnn"].argv[:4] == ("py", "-m", "torch.distributed.run", "--nnodes=1:1")
    assert shown["dnn"].argv[-5:] == ("--no-python", "py", "train.py", "--epochs", "3")
    assert shown["old"].argv == ("mpirun", "-verbose", "py", "train.py", "--epochs", "3")
