"""The pictures and the page: drawn from the committed results, with all that they should name, the same each time."""

from __future__ import annotations

import re
import subprocess
import sys
from html import escape
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from bench import table
from bench.catalog import twins

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from bench import plots, report
from bench.plots import rooflines, style

GPU = table.RESULTS / "nvidia-h200"
TEXT = re.compile(r"<text[^>]*>([^<]*)</text>")
RUNGS = [f"{cuda.rung} {cuda.name.removesuffix('_cuda')}" for cuda, _ in twins()]


def committed(suite: str):
    return table.read(GPU / f"{suite}.csv")


def named(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("name", plots.PICTURES)
def test_a_picture_in_docs_is_that_of_the_results(name: str) -> None:
    picture = plots.PICTURES[name]
    svg = picture.of(GPU, "svg")
    assert svg == picture.of(GPU, "svg")
    text = svg.decode()
    assert "NVIDIA H200, 20" in text
    # the words and figures in it: where lines run to the digit is matplotlib's
    assert TEXT.findall(text) == TEXT.findall((plots.PLOTS / f"{name}-nvidia-h200.svg").read_text()), "make plots"
    assert (plots.PLOTS / f"{name}-nvidia-h200.png").stat().st_size > 10_000
    shown = [path for path in table.documents() if f"plots/{name}-nvidia-h200.svg)" in path.read_text()]
    assert len(shown) == 1


def test_a_bitmap_is_the_same_each_time() -> None:
    picture = plots.PICTURES["ladder"]
    assert picture.of(GPU, "png") == picture.of(GPU, "png")


def test_speed_against_size() -> None:
    data = committed("square")
    [axes] = plots.square(data).axes
    assert "GFLOP/s" in axes.get_ylabel() and axes.get_xscale() == "log"
    assert {line.label for line in style.LINES.values()} | {"FMA units: 66,908"} <= set(named(axes))
    heights = sorted(text.get_position()[1] for text in axes.texts)
    assert all(above - below >= 0.99 * style.ROOM for below, above in pairwise(heights))
    assert len(plots.square(data.assign(gpu="another")).axes[0].texts) == len(style.LINES)
    with pytest.raises(ValueError, match="has a time"):
        plots.square(data.assign(gflops=None))


def test_labels_are_moved_apart_as_little_as_it_takes() -> None:
    room = style.ROOM
    assert style.spread([0.2, 0.9]) == [0.2, 0.9] and style.spread([]) == []
    assert style.spread([0.5, 0.5]) == pytest.approx([0.5 - room / 2, 0.5 + room / 2])
    assert style.spread([0.0, 0.0, 0.0]) == pytest.approx([0, room, 2 * room], abs=1e-3)


def test_the_ladder_has_a_bar_for_each_kernel() -> None:
    data = committed("chapter")
    [axes] = plots.ladder(data).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == RUNGS and len(axes.patches) == 2 * len(RUNGS)
    percents = data.set_index("variant")["pct_cublas"]
    for cuda, twin in twins():
        assert f"{percents[cuda.name]:.1f}" in named(axes)
        assert any(name.startswith(f"{percents[twin.name]:.1f}  ") for name in named(axes))
    assert "cuBLAS SGEMM: 51,328 GFLOP/s" in named(axes)
    with pytest.raises(ValueError, match="no rung"):
        plots.ladder(data[data["variant"] == "cublas"])


@pytest.mark.parametrize("draw", [rooflines.dram, rooflines.shared])
def test_every_rung_is_under_a_roof_and_no_name_on_another(draw) -> None:
    figure = draw(committed("chapter"))
    [axes] = figure.axes
    assert set(RUNGS) <= set(named(axes)) and axes.get_xscale() == axes.get_yscale() == "log"
    figure.canvas.draw()
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts if not text.get_rotation()}
    for one, other in combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), (one, other)
    with pytest.raises(ValueError, match="is not known"):
        draw(committed("chapter").assign(gpu="another"))


def test_the_roofs_meet_where_the_gpu_is_balanced() -> None:
    for draw, knee, slope in (
        (rooflines.dram, 66908.2 / 4800, "4,800 GB/s"),
        (rooflines.shared, 4, "4 FMAs a shared load"),
    ):
        [axes] = draw(committed("chapter")).axes
        [roof] = [line for line in axes.lines if len(line.get_xdata()) == 3]
        assert roof.get_xdata()[1] == pytest.approx(knee, rel=1e-4) and slope in named(axes)
        left, corner = roof.get_xydata()[:2]
        assert corner[1] / corner[0] == pytest.approx(left[1] / left[0])


def test_errors_against_depth() -> None:
    data = committed("precision")
    normal, uniform = plots.errors(data).axes
    assert normal.get_title() == "N(0,1)" and uniform.get_title() == "U(0,1)"
    wanted = {"matmul, tf32", "cuBLAS, TF32", "matmul, fp32", "matmul, ieee", "cuBLAS SGEMM", "2⁻²⁴"}
    assert wanted < set(named(uniform)) and normal.get_yscale() == "log"
    with pytest.raises(ValueError, match="no errors"):
        plots.errors(data[data["K"] == 4096])


def test_what_is_not_measured_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "results" / "gpu").mkdir(parents=True)
    (tmp_path / "results" / "gpu" / "chapter.csv").write_bytes((GPU / "chapter.csv").read_bytes())
    where = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-m", "bench.plots", *where], capture_output=True, text=True, cwd=table.ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written: ") == 6 and "left out: square-gpu: no " in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"{name}-gpu.{kind}" for name in ("ladder", "roofline-dram", "roofline-shared") for kind in ("svg", "png")
    }
    text, lacking = report.page(table.folders(tmp_path / "results"))
    assert text.count("<h3") == 2 and any(why.startswith("How right: no ") for why in lacking)


def test_the_page_has_everything_and_needs_nothing() -> None:
    text, lacking = report.page([GPU])
    assert text == report.page([GPU])[0]
    for section in report.SECTIONS:
        there = f">{section.heading}</h3>" in text
        assert there == (GPU / f"{section.results}.csv").exists() != any(section.heading in why for why in lacking)
    assert text.count("<svg") == text.count("</svg>") == len(plots.PICTURES)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used = re.findall(r'\b(?:src|href|action|data)="([^"]*)"|url\(([^)]*)\)', text)
    assert used and {one or other for one, other in used} <= {f"#{at}" for at in ids}
    assert "@import" not in text and "<script" not in text and "nan" not in re.findall(r">([^<]*)</td>", text)
    assert '<td class="left">naive_cuda</td>' in text and escape(table.origin(committed("square"))) in text
    assert {path.stem for path in GPU.glob("*.csv")} <= {section.results for section in report.SECTIONS}


def test_tables_as_html() -> None:
    text = report.html("**a & b**\n\n| x | y |\n|:--|--:|\n| *m* | <1 |\n\nwhere")
    assert "<h4>a &amp; b</h4>" in text and '<td class="left"><em>m</em></td><td class="right">&lt;1</td>' in text
    assert text.endswith('<p class="origin">where</p>')
