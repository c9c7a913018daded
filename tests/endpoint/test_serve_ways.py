"""The ways into `headrace serve`: a program that it runs, TLS, and which Python stands for an image."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest
import trustme

from headrace.cli.main import invoke
from headrace.endpoint.auth.gatekeeper import AccessKey, Holder
from headrace.endpoint.client_setup import ClientSetup
from headrace.endpoint.endpoint_server import ServeOptions
from headrace.endpoint.training_jobs.job_of_request import EngineSettings
from headrace.errors import UsageError
from patience import allowed
from serve_process import BUCKET, serving

CHILD = """
import boto3, sys
sts = boto3.client("sts", endpoint_url="https://sts.us-east-1.amazonaws.com")  # as the SDK has it, fixed
print(sts.get_caller_identity()["Arn"])
s3 = boto3.client("s3")
s3.create_bucket(Bucket="by-the-proxy")
s3.put_object(Bucket="by-the-proxy", Key="a", Body=b"content")
print(s3.get_object(Bucket="by-the-proxy", Key="a")["Body"].read())
print(boto3.client("sagemaker").list_training_jobs()["TrainingJobSummaries"])
sys.exit(7)
"""


@pytest.mark.promise("serve", "a program of the endpoint reaches it by AWS's variables and fixed addresses")
def test_a_program_that_it_runs_reaches_it_under_the_names_of_aws(
    tmp_path: Path,
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ |= {"HEADRACE_HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "the-users-own", "AWS_SECRET_ACCESS_KEY": "x"}
    environ |= {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "headrace", "serve", "--", sys.executable, "-c", CHILD]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=allowed(60))
    assert done.stdout.splitlines() == ["arn:aws:sts::000000000000:assumed-role/headrace/user", "b'content'", "[]"], (
        done
    )
    assert (done.returncode, "can be reached" in done.stderr) == (7, False)
    assert (tmp_path / "buckets" / "by-the-proxy" / "a").read_bytes() == b"content"


HOOKED = """
import sys
print(*sorted(name for name in sys.modules if name.split(".")[0] in ("boto3", "botocore", "aiobotocore", "own")))
import aiobotocore.session, botocore.session
ours, sessions = "http://127.0.0.1:7080", (aiobotocore.session.AioSession(), botocore.session.Session())
fixed = ("https://sts.eu-west-1.amazonaws.com", "https://s3.cn-north-1.amazonaws.com.cn", "https://s3.eu-west-1.api.aws",
         "https://STS.amazonaws.com./")
others = ("https://sts.amazonaws.com.evil.org", "https://evilamazonaws.com", "http://localhost:9000", None)
for address, expected in [*((name, ours) for name in fixed), *((name, name) for name in others)]:
    for session in sessions:
        assert session.create_client("sts", endpoint_url=address)[-1] == expected, address
        assert session.create_client("sts", None, None, True, None, address)[-1] == expected, address
assert sessions[1].create_client.__name__ == "create_client"
"""
SESSION = """
class Session:
    def create_client(self, name, region=None, version=None, ssl=True, verify=None, endpoint_url=None):
        return name, endpoint_url
"""


@pytest.mark.promise("serve", "a program of the endpoint reaches it by AWS's variables and fixed addresses")
def test_fixed_addresses_of_aws_become_the_endpoint_where_python_starts_and_nothing_else_of_it_changes(
    tmp_path: Path,
) -> None:
    for package, text in (("botocore", SESSION), ("aiobotocore", SESSION.replace("Session", "AioSession"))):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "session.py").write_text(text)
    (tmp_path / "own.py").touch()
    (tmp_path / "sitecustomize.py").write_text("import own")
    setup = ClientSetup(tmp_path, "http://127.0.0.1:7080", "eu-west-1", AccessKey(Holder.USER, "id", "secret"))
    environ = setup.environment({"PYTHONPATH": str(tmp_path), "AWS_PROFILE": "mine", "no_proxy": "a.org"})
    assert environ["NO_PROXY"] == environ["no_proxy"] == "a.org,127.0.0.1"
    assert (environ["AWS_PROFILE"], environ["AWS_ACCESS_KEY_ID"]) == ("headrace", "id")
    command = [sys.executable, "-S", "-c", f"import site; site.execsitecustomize()\n{HOOKED}"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=allowed(60))
    assert (done.stdout, done.stderr) == ("own\n", "")


def test_beside_the_probe_of_doctor_the_hook_is_set_once_and_the_one_behind_both_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own')")
    hook, probe = (files("headrace") / room / "bootstrap" for room in ("endpoint", "measuring"))
    count = "import sys; print(sum(type(finder).__name__ == 'SessionFinder' for finder in sys.meta_path))"
    for first, second in ((hook, probe), (probe, hook)):
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (first, second, tmp_path)))}
        done = subprocess.run(
            [sys.executable, "-c", count], env=environ, capture_output=True, text=True, timeout=allowed(60)
        )
        assert done.stdout == "own\n1\n", done.stderr


@pytest.mark.promise("serve", "with a certificate it answers HTTPS")
def test_with_a_certificate_it_answers_https_and_its_profile_says_so(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = (tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    made = authority.issue_cert("127.0.0.1")
    files[0].write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    made.private_key_pem.write_to_path(str(files[1]))
    authority.cert_pem.write_to_path(str(files[2]))
    with serving("--tls-cert", str(files[0]), "--tls-key", str(files[1])) as endpoint:
        assert endpoint.url.startswith("https://")
        assert f"endpoint_url = {endpoint.url}" in (endpoint.store / "aws-config").read_text()
        assert endpoint.client(verify=str(files[2])).list_training_jobs()["TrainingJobSummaries"] == []
        s3, data = endpoint.client("s3", verify=str(files[2])), os.urandom(1_100_000)
        s3.put_object(Bucket=BUCKET, Key="a", Body=data)  # the bucket of its profile is there from the start
        assert s3.get_object(Bucket=BUCKET, Key="a")["Body"].read() == data
        assert (endpoint.bucket / "a").read_bytes() == data
        endpoint.close_clients()


@pytest.mark.promise("sagemaker-differences", "`requirements.txt`, by headrace serve")
def test_an_image_is_the_python_that_the_map_names_with_what_requirements_install_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "alpha-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("alpha.py", "version = '1.0'")
        archive.writestr("alpha-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\n")
        archive.writestr("alpha-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("alpha-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    python = tmp_path / "another-python"
    python.symlink_to(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
    with serving("--image-map", f"pytorch-training:2.1={python}") as endpoint:
        client = endpoint.client()
        mapped = endpoint.one_host("mapped", "")
        script = "import alpha, sys; print('prefix', sys.base_prefix, 'alpha', alpha.version)"
        endpoint.put_code("mapped", **{"train": script, "requirements.txt": "alpha"})
        client.create_training_job(**mapped)
        other = endpoint.one_host("other", "import sys; print('path', *sys.path)")
        other["AlgorithmSpecification"]["TrainingImage"] = "repository/pytorch-training:2.2"
        client.create_training_job(**other)
        notes = {}
        for name in ("mapped", "other"):
            found = endpoint.ended(client, name)
            assert found["TrainingJobStatus"] == "Completed", found.get("FailureReason")
            notes[name] = " ".join(each["StatusMessage"] for each in found["SecondaryStatusTransitions"])
        assert f"programs run in {python}" in notes["mapped"]
        assert f"programs run in {sys.executable}" in notes["other"]
        logs = {run.parent.name.split("-")[0]: run.parent for run in endpoint.runs()}
        text = {name: next(run.glob("logs/*/*/0.log")).read_text() for name, run in logs.items()}
        assert f"prefix {sys.base_prefix} alpha 1.0" in text["mapped"]
        packages = next((endpoint.home / "environments").glob("[0-9a-f]*")).resolve() / "lib"
        assert sys.prefix not in "".join(path.read_text() for path in packages.glob("*/site-packages/*.pth"))
        assert f" {sysconfig.get_paths()['purelib']}" in text["other"]
        endpoint.close_clients()


def test_print_env_names_the_endpoint_that_runs_whatever_its_port_and_writes_for_one_that_does_not() -> None:
    with serving() as endpoint:
        environ = {**os.environ, "HEADRACE_HOME": str(endpoint.home)}
        command = [sys.executable, "-m", "headrace", "serve", "--print-env"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=allowed(60), check=True)
        assert done.stdout.splitlines()[-6:] == [line for line in endpoint.output if line.startswith("export")]
        assert f"endpoint_url = {endpoint.url}" in (endpoint.store / "aws-config").read_text()
        endpoint.end()
        subprocess.run(command, env=environ, capture_output=True, timeout=allowed(60), check=True)
        assert "endpoint_url = http://127.0.0.1:7080" in (endpoint.store / "aws-config").read_text()


def test_another_one_beside_it_has_its_own_store_and_buckets_and_is_told_how(tmp_path: Path) -> None:
    with serving() as endpoint:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environ["HEADRACE_HOME"] = str(endpoint.home)

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "headrace", "serve", *arguments, "--", sys.executable, "-c", CHILD]
            return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=allowed(60))

        done = run("--store", str(tmp_path / "own"))
        assert done.returncode == 7, done.stderr
        assert (tmp_path / "own" / "buckets" / "by-the-proxy" / "a").read_bytes() == b"content"
        refused = run()
        assert refused.returncode == 2
        assert "another `headrace serve` uses" in refused.stderr
        assert "headrace serve --store FOLDER" in refused.stderr
        shared = run("--store", str(tmp_path / "other"), "--buckets", str(endpoint.home / "buckets"))
        assert shared.returncode == 2
        assert "with --buckets" in shared.stderr


def test_wrong_addresses_are_told_and_an_open_address_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))

    def refused(*arguments: str) -> str:
        assert invoke(["serve", *arguments, "--", "true"]) == 2
        return capsys.readouterr().err

    certificate = ("--tls-cert", __file__, "--tls-key", __file__)
    assert "--tls-cert is for clients of other machines" in refused(*certificate)
    with pytest.raises(UsageError, match="--region mars: "):
        ServeOptions(region="mars")
    for host in ("192.0.2.1", "no-such-host.invalid"):
        assert "give an address of this machine" in refused("--host", host)
    command = [sys.executable, "-m", "headrace", "serve", "--host", "0.0.0.0", "--", "true"]
    environ = {**os.environ, "HEADRACE_HOME": str(tmp_path / "open")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=allowed(60))
    assert (done.returncode, "warning: 0.0.0.0 can be reached" in done.stderr) == (0, True), done.stderr


def test_options_of_the_engine_that_no_job_could_have_are_told() -> None:
    given = ("engines.local.isolation=[", "engines.local.isolation=none", "engines.local.isolation.x=3")
    for texts, said in ((given[:1], "isolation=[: the value is not YAML"), (given[1:], ".x=3: has no keys or items")):
        with pytest.raises(UsageError, match=re.escape(said)):
            EngineSettings("local", texts).check()
    EngineSettings("local", given[1:2]).check()
