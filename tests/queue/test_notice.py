"""What a patched wheel says of itself: the notice, the summary, and where its users write to."""

from __future__ import annotations

import email
import json

import fakes
import pytest
from test_build import INFO, LOCAL, make, members

from patchqueue.outcome import Refused
from patchqueue.wheels import notice

OURS = "https://example.org/queue"
HEAD = """\
Metadata-Version: 2.4
Name: sglang
Version: 9.9.1+pcg.7
Summary: Serves models.
Project-URL: Homepage, https://example.org/sglang
Project-URL: Bug Tracker, https://example.org/sglang/issues
Project-URL: Issues, https://example.org/sglang/issues
License-File: LICENSE
Requires-Dist: torch

Project-URL: Bug Tracker, of the text below
"""


def fields(address: str = "") -> email.message.Message:
    return email.message_from_string(notice.metadata(HEAD, 7, address))


def test_the_summary_says_that_it_is_patched():
    assert fields()["Summary"] == "Patched by the sglang patch queue, release 7: Serves models."
    bare = "Metadata-Version: 2.1\nName: sglang\nVersion: 9.9.1\n"
    added = email.message_from_string(notice.metadata(bare, 7, ""))
    assert added["Summary"] == "Patched by the sglang patch queue, release 7"


@pytest.mark.parametrize("address", ["", OURS])
def test_reports_do_not_go_to_upstream(address):
    urls = dict(url.split(", ") for url in fields(address).get_all("Project-URL"))
    own = {"Homepage": OURS, "Bug Tracker": f"{OURS}/issues"} if address else {}
    assert urls == {**own, "Upstream Homepage": "https://example.org/sglang"}


def test_all_else_stays_as_it_is():
    told = notice.metadata(HEAD, 7, OURS)
    assert told.partition("\n\n")[2] == HEAD.partition("\n\n")[2]
    assert fields(OURS).get_all("Requires-Dist") == ["torch"]
    assert fields(OURS).get_all("License-File") == ["LICENSE", notice.FILE]


def test_the_notice_names_every_changed_file(project):
    found = members(make(project).path)
    told = found[f"{INFO}{notice.FILE}"].decode()
    assert f"version {LOCAL}, not the sglang project's own 9.9.1" in told
    changed, added = told.partition("\nChanged:\n")[2].split("\nAdded:\n")
    assert changed.split() == ["sglang/_version.py", "sglang/srt/cut.py", "sglang/srt/runner.py"]
    assert added.split() == ["sglang/srt/steps/__init__.py"] and "Removed" not in told
    assert "section 4(b)" in told and "http" not in told


def test_the_bill_of_materials_names_upstreams_wheel_and_every_patch(project):
    made = make(project)
    bill = json.loads(members(made.path)[f"{INFO}{notice.BILL}"])
    component = bill["metadata"]["component"]
    (upstream,) = component["pedigree"]["ancestors"]
    assert (component["purl"], upstream["purl"]) == (
        "pkg:pypi/sglang@9.9.1%2Bpcg.2",
        "pkg:pypi/sglang@9.9.1",
    )
    assert upstream["hashes"] == [{"alg": "SHA-256", "content": made.record["source"]["sha256"]}]
    named = [one["resolves"][0]["id"] for one in component["pedigree"]["patches"]]
    assert named == ["steps/count-once-more.patch", "steps/name-the-cut.patch"]


def test_the_notice_lies_beside_upstreams_licence(project):
    """Where METADATA names it: both are read from there."""
    info = "sglang-9.9.1.dist-info"
    own = {f"{info}/licenses/LICENSE": "Apache", f"{info}/METADATA": HEAD.replace("+pcg.7", "")}
    (project.root / "upstream/pins.toml").unlink()
    project.release(files=fakes.RELEASE | own)
    project.write("releases/about.toml", f'repository = "{OURS}"\n')
    found = members(make(project).path)
    text = found[f"{INFO}licenses/{notice.FILE}"].decode()
    assert f"({OURS})" in text and f"{INFO}{notice.FILE}" not in found
    metadata = email.message_from_bytes(found[f"{INFO}METADATA"])
    assert metadata.get_all("License-File") == ["LICENSE", notice.FILE]
    assert f"Bug Tracker, {OURS}/issues" in metadata.get_all("Project-URL")


@pytest.mark.parametrize("address", ["example.org/queue", "https://example.org/queue/"])
def test_an_address_that_is_none_is_refused(project, address):
    project.write("releases/about.toml", f'repository = "{address}"\n')
    with pytest.raises(Refused, match=r"releases/about.toml: .*repository.*bad-releases"):
        make(project)
