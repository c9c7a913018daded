"""What the local engine says of a machine, for machines that this one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engines.local.cgroups import CPU, MEMORY, Place, Places
from headrace.engines.local.engine import of_isolation, of_limits
from headrace.hosting.isolation import network
from headrace.hosting.isolation.probing import Findings

WHOLE = Findings(namespace="", outward="", connected=True, user_namespace=True)


def works(found: Findings) -> dict[str, bool]:
    return {one.name: one.works for one in of_isolation(found)}


def test_what_works_is_told_with_how() -> None:
    assert all(works(WHOLE).values())
    assert any("without root" in one.detail for one in of_isolation(WHOLE))
    places = Places({MEMORY: Place(2, Path("/g")), CPU: Place(2, Path("/g"))}, {})
    assert [one.works for one in of_limits(places)] == [True, True]


@pytest.mark.promise("engines", "`doctor --engine` says what works in an engine, and what to install")
def test_what_does_not_work_is_told_with_why_and_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr(network, "program", lambda name: "/usr/sbin/nft" if name == "nft" else None)
    cut_off = Findings("", "pasta is not installed", True, False, overlay="an old Linux")
    found = {one.name: one for one in of_isolation(cut_off)}
    way = found["isolation: way out"]
    assert not way.works
    assert "pasta is not installed" in way.detail
    assert "apt install passt" in way.hint
    assert "nftables" not in way.hint, "that is there"
    assert (found["isolation: channels"].works, found["isolation: namespace"].works) == (False, True)
    assert works(Findings("no bridge", "no bridge", True, True)) == {
        "isolation: namespace": False,
        "isolation: shared_network": True,
        "isolation: channels": True,
        "isolation: none": True,
    }
    why = "no namespaces (a container)"
    none = {one.name: one for one in of_isolation(Findings(why, "", True, True, shared_network=why))}
    assert [one.name for one in none.values() if one.works] == ["isolation: none"]
    for level in ("namespace", "shared_network"):
        one = none[f"isolation: {level}"]
        assert (one.detail, bool(one.hint)) == (why, True)
    lacking = list(of_limits(Places({}, {MEMORY: "/g is not writable", CPU: "no controller"})))
    assert [(one.works, one.detail, bool(one.hint)) for one in lacking] == [
        (False, "/g is not writable", True),
        (False, "no controller", True),
    ]
