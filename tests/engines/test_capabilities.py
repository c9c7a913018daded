"""What the local engine says of a machine, for machines that this one is not."""

from __future__ import annotations

from pathlib import Path

from headrace.engines.local.isolation import uplink
from headrace.engines.local.isolation.probing import Findings
from headrace.engines.local.limits.cgroups import CPU, MEMORY, Place, Places
from headrace.engines.local.local_capabilities import of_isolation, of_limits

WHOLE = Findings(namespace="", outward="", connected=True, user_namespace=True)


def works(found: Findings) -> dict[str, bool]:
    return {one.name: one.works for one in of_isolation(found)}


def test_what_works_is_told_with_how() -> None:
    assert all(works(WHOLE).values())
    assert any("without root" in one.detail for one in of_isolation(WHOLE))
    places = Places({MEMORY: Place(2, Path("/g")), CPU: Place(2, Path("/g"))}, {})
    assert [one.works for one in of_limits(places)] == [True, True]


def test_what_does_not_work_is_told_with_why_and_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr(uplink, "program", lambda name: "/usr/sbin/nft" if name == "nft" else None)
    cut_off = Findings("", "pasta is not installed", True, False, overlay="an old Linux")
    found = {one.name: one for one in of_isolation(cut_off)}
    way = found["isolation: way out"]
    assert not way.works
    assert "pasta is not installed" in way.detail
    assert "apt install passt" in way.hint
    assert "nftables" not in way.hint, "that is there"
    assert (found["isolation: channels"].works, found["isolation: namespace"].works) == (False, True)
    none = {one.name: one for one in of_isolation(Findings("no namespaces (a container)", "", True, True))}
    assert {name: one.works for name, one in none.items()} == {"isolation: namespace": False, "isolation: none": True}
    assert none["isolation: namespace"].detail == "no namespaces (a container)"
    assert none["isolation: namespace"].hint
    lacking = list(of_limits(Places({}, {MEMORY: "/g is not writable", CPU: "no controller"})))
    assert [(one.works, one.detail, bool(one.hint)) for one in lacking] == [
        (False, "/g is not writable", True),
        (False, "no controller", True),
    ]
