"""Runs as one HTML file: what stands in it is what was read, and a browser draws it without asking anybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from gridweave.errors import InputError
from gridweave.scenarios.plots.report import read_run, report
from support.web import browsing, needs_browser

SUMMARY = """{"label": "</script><b>easy", "nodes": 8, "metrics": {"util": 0.5, "jobs": 2, "awt_ms": 90000.0},
"sites": [{"name": "north", "nodes": 4}, {"name": "south", "nodes": 4}]}"""
JOBS = """job_id,submit_ms,start_ms,end_ms,width,estimate_ms,run_ms,site,fragments,killed
1,0,0,3600000,6,1,1,north:4+south:2,2,0
2,0,3600000,7200000,4,1,1,south,1,1
"""


def a_run(folder: Path, *, summary: str = SUMMARY, jobs: str = JOBS) -> Path:
    """Write the folder of a run."""
    (folder / "summary.json").write_text(summary)
    (folder / "jobs.csv").write_text(jobs)
    return folder


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Jobs are where they ran, parts on each site; no text can end the element that the data stands in."""
    run = read_run(a_run(tmp_path))
    assert run.sites == [("north", 4), ("south", 4)]
    assert run.jobs[0][3:] == ("finished", 0, 0, 3_600_000, [("north", 4), ("south", 2)])
    assert run.jobs[1][3:] == ("limit", 0, 3_600_000, 7_200_000, [("south", 4)])
    assert report([run]).count("</script>") == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"summary": "{"}, "summary.json: Input data was truncated; name a folder that --out has written"),
        ({"summary": "{}"}, "summary.json: has no label, metrics, nodes; it is not the summary of one run"),
        (
            {"summary": SUMMARY.replace('"nodes": 8', '"nodes": "many"')},
            "summary.json: Expected `int`, got `str` - at `$.nodes`; it is not the summary of one run",
        ),
        ({"summary": SUMMARY.replace('"name": "north", ', "")}, "`$.sites[0]`; it is not the summary of one run"),
        ({"jobs": "a,b\n1,2\n"}, "jobs.csv: has no column job_id, submit_ms"),
        ({"jobs": JOBS + "3,x,0,1,1,1,1,north,1,0\n"}, "jobs.csv: line 4: cannot be read; expected whole numbers"),
        ({"jobs": JOBS + "3,0,0,1,1,1,1,north:a,1,0\n"}, "jobs.csv: line 4: cannot be read; expected whole numbers"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    """A file that is none of a run is named, with the line, and what would be right."""
    with pytest.raises(InputError) as refused:
        read_run(a_run(tmp_path, **changes))
    assert said in str(refused.value)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    """A folder that no run has written is refused."""
    with pytest.raises(InputError, match="No such file or directory; name a folder that --out has written"):
        read_run(tmp_path)


@needs_browser
@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_browser_draws_it_offline(tmp_path: Path) -> None:
    """Two runs stand side by side; the file loads nothing, and nothing in it is refused by its own policy."""
    run = read_run(a_run(tmp_path))
    path = tmp_path / "report.html"
    path.write_text(report([run, run]), encoding="utf-8")
    async with browsing() as window:
        await window.go(path.as_uri())
        await expect(window.page.locator("canvas")).to_have_count(2)
        await expect(window.page.get_by_role("row").filter(has_text="Utilisation")).to_contain_text("50.0%")
        box = await window.page.locator("canvas").first.bounding_box()
        assert box is not None
        await window.page.mouse.move(box["x"] + 10, box["y"] + 28 + 26 + 4)
        await expect(window.page.locator(".hint").first).to_contain_text("Job 1: finished, on north (4) + south (2)")
        assert window.asked == {path.as_uri()}
        assert window.problems == []
