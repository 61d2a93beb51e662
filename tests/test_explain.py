"""What `make explain` says: the chapter's figures, occupancy, loops in machine code, and the command itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from bench import explain, table
from bench.catalog import VARIANTS, twins
from bench.compiled import Compiled, Main, read_all
from bench.occupancy import occupancy
from bench.predicted import tiling
from bench.sass import instructions, loops, main_loop
from reference_cuda.rungs import RUNGS
from triton_sgemm.device import ARCHS, CARDS, gpu

ROOT = Path(__file__).parent.parent
RTX_5080 = CARDS["rtx-5080"]


def of(name: str, gpu: str = "rtx-5080", compiled: Compiled | None = None) -> explain.Explained:
    code = {(name, CARDS[gpu].capability): compiled} if compiled else {}
    return explain.explained([VARIANTS[name]], CARDS[gpu], code)[0]


# ---- the chapter, in its words

CHAPTER = [
    # of the kernel before
    ("coalesced", "global loads an output", "8,192", "4096 + 4096 = 8192 Loads"),
    ("coalesced", "FLOP/byte", "0.25", "The previous intensity of 0.25"),
    ("coalesced", "a warp wants at each k", "1 + 4 sectors", "only needs 4 transactions; down to a single transaction"),
    ("naive", "a warp wants at each k", "32 + 1 sectors", "instead of 32 to serve the whole warp"),
    # of the tiled one
    ("smem_tiling", "steps of K", "128", "4096 / 32 = 128 block tiles per matrix"),
    ("smem_tiling", "global loads a block", "262,144", "256 x 1024 = 262,144 total floats"),
    ("smem_tiling", "global loads an output", "256", "we reduced the loads per cell from 8192 to 256"),
    ("smem_tiling", "from the rung before", "8,192: 32 times fewer", "a decrease by a factor of 32"),
    ("smem_tiling", "FLOP/byte", "8", "moves to 8 FLOP/byte"),
    ("smem_tiling", "of the ridge", "58.6: 7.3 times short", "7.3 times short; the ridge point was 58.6"),
    ("smem_tiling", "a thread owns", "1 x 1", "one thread, one output"),
    ("smem_tiling", "shared loads an output", "8,192", "precisely 2K = 8192 reads per output element"),
    ("smem_tiling", "FMAs a shared load", "0.5", "two loads per FMA, which is 0.5"),
    ("smem_tiling", "of the balance", "4: 8 times short", "balanced at four FMAs; we are eight times short"),
    ("smem_tiling", "FMA units idle", "87.5%", "seven cycles out of every eight"),
    ("smem_tiling", "binds", "shared loads", "we are now bounded by shared memory bandwidth"),
    ("smem_tiling", "bytes of tiles", "8,192", "the two tiles cost 8192 bytes of shared memory"),
    ("smem_tiling", "threads", "1,024", "The block is 1024 threads"),
    ("smem_tiling", "blocks an SM", "1", "caps residency at one block per SM"),
    ("smem_tiling", "threads unused", "512 of 1,536", "An SM holds 1536 threads; 512 thread slots go unused"),
    ("smem_tiling", "occupancy", "66.7%", "which is 66.7% occupancy"),
    ("smem_tiling", "bound by", "threads", "the block size is"),
]


@pytest.mark.parametrize(("rung", "figure", "value", "words"), CHAPTER, ids=[f"{c[0]}-{c[1]}" for c in CHAPTER])
def test_the_chapters_figures(rung: str, figure: str, value: str, words: str) -> None:
    assert of(f"{rung}_cuda").figures("predicted")[figure] == value, words


def test_the_chapters_intensity_grew_as_its_loads_fell() -> None:
    before, after = (tiling(VARIANTS[f"{name}_cuda"]) for name in ("coalesced", "smem_tiling"))
    assert after.flop_per_byte / before.flop_per_byte == 32  # "This is a 32 times increase"
    assert before.loads(4096) / after.loads(4096) == 32


def test_an_sm_of_an_h200_holds_twice_as_much() -> None:
    figures = of("smem_tiling_cuda", "h200").figures("predicted")
    assert (figures["blocks an SM"], figures["occupancy"], figures["threads unused"]) == ("2", "100.0%", "0 of 2,048")


@pytest.mark.parametrize("rung", RUNGS, ids=lambda r: r.name)
def test_a_rung_says_what_its_tile_predicts(rung) -> None:
    t = tiling(VARIANTS[f"{rung.name}_cuda"])
    if per := t.fma_per_load:
        assert re.search(rf"FMA per shared load.*\b{per:.2g}", rung.doc) or "as in" in rung.doc
    if t.stages and (share := re.search(r"= 2K/(\d+)|: 2K/(\d+)", rung.doc)):
        assert round(2 / t.rim) == int(share[1] or share[2])
    if intensity := re.search(r"([\d.]+) FLOP/byte", rung.doc):
        assert t.flop_per_byte == pytest.approx(float(intensity[1]), abs=0.5)


def test_twins_predict_the_same() -> None:
    for cuda, twin in twins():
        a, b = tiling(cuda), tiling(twin)
        assert replace(b, lanes=b.lanes or a.lanes) == a, twin.name


def test_every_kernel_has_a_tile() -> None:
    for v in VARIANTS.values():
        assert bool(tiling(v)) == bool(v.launch or v.backend == "cuda"), v.name


def test_tensor_cores_load_half_of_a_float_for_each_plane() -> None:
    three, one = tiling(VARIANTS["fp16x3_128x128x64"]), tiling(VARIANTS["fp16x1_128x128x64"])
    assert (three.flop_per_byte, one.flop_per_byte) == (32, 64)
    assert three.fma_per_load is None and three.occupancy(ARCHS[90]) is None


# ---- GPUs


def test_facts_of_the_gpus() -> None:
    assert f"{RTX_5080.ridge:.1f}" == "58.6" and round(RTX_5080.fma_peak_gflops) == 56276
    assert RTX_5080.slug == "nvidia-geforce-rtx-5080" and RTX_5080.sms == 84
    for arch in ARCHS.values():
        # Best Practices: a block leaves 1 KB of an SM's shared memory to CUDA
        assert arch.sm_smem_bytes == arch.smem_bytes + 1024
    assert (ARCHS[120].sm_threads, ARCHS[90].sm_threads, ARCHS[120].balance, ARCHS[80].balance) == (1536, 2048, 4, 2)
    assert all(card.capability in ARCHS and card.source for card in CARDS.values())


@pytest.mark.gpu
def test_facts_of_this_gpu() -> None:
    here = gpu(0)
    for card in CARDS.values():
        if card.name == here.name:
            assert (card.capability, card.sms, card.max_clock_mhz) == (here.capability, here.sms, here.max_clock_mhz)


# ---- occupancy


@pytest.mark.parametrize(
    ("capability", "threads", "shared", "registers", "blocks", "bound_by"),
    [
        (120, 1024, 8192, None, 1, "threads"),  # the chapter's
        (90, 1024, 8192, None, 2, "threads"),
        (90, 1024, 8192, 32, 2, "threads, registers"),
        (90, 1024, 8192, 33, 1, "registers"),  # 33 take 40: steps of 256 a warp
        (90, 256, 0, 40, 6, "registers"),
        (90, 256, 0, 41, 5, "registers"),
        (90, 256, 0, 128, 2, "registers"),
        (90, 96, 0, 168, 4, "registers"),  # 3 warps a partition, 12 in all
        (90, 32, 0, 16, 32, "blocks"),
        (120, 32, 0, 16, 24, "blocks"),
        (90, 128, 227 << 10, 64, 1, "shared memory"),
        (90, 128, (228 << 10) // 4 - 1024, 64, 4, "shared memory"),
        (90, 128, (228 << 10) // 4 - 1023, 64, 3, "shared memory"),
        (120, 33, 0, 16, 24, "threads, blocks"),  # 33 threads are two warps
        (90, 384, 0, 240, 0, "registers"),
    ],
)
def test_occupancy(capability, threads, shared, registers, blocks, bound_by) -> None:
    fit = occupancy(ARCHS[capability], threads, shared, registers)
    assert (fit.blocks, fit.bound_by) == (blocks, bound_by)
    assert fit.share == blocks * threads / fit.sm_threads and fit.unused == fit.sm_threads - blocks * threads


# ---- machine code

ROLLED = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 BRA `(.L_x_0) ;
.L_x_2:
        /*0020*/                   LDG.E.128 R4, [R2.64] ;
        /*0030*/              @!PT LDS RZ, [RZ] ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_1:
        /*0050*/                   LDS R8, [R5] ;
        /*0060*/                   LDS.128 R12, [R0+UR6] ;
        /*0070*/                   LDS.U.64 R16, [R0+UR6+0x10]               &wr=0x0         ?trans1;
        /*0078*/                   LDSM.16.M88 R17, [R7+UR4] ;
        /*007c*/                   LDSM.16.MT88.4 R16, [R7+UR4] ;
        /*0080*/                   FFMA R20, R8, R12, R20 ;
        /*0090*/                   FFMA R20, R9, R13, R20 ;
        /*00a0*/              @P1  BRA `(.L_x_1) ;
        /*00b0*/                   BRA.U UP0, `(.L_x_2)                         ?trans5;
.L_x_0:
        /*00c0*/                   FFMA R20, R20, c[0x0][0x17c], R21 ;
        /*00d0*/                   EXIT ;
.L_x_3:
        /*00e0*/                   BRA `(.L_x_3);
"""

WAITS = """
.L_x_10:
        /*0000*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR19+0x31400], R88 ;
        /*0010*/              @!P0 BRA `(.L_x_8) ;
.L_x_58:
        /*0020*/                   HGMMA.64x128x16.F32 R88, gdesc[UR20].tnspB, RZ, !UPT ;
        /*0030*/              @!P1 BRA `(.L_x_10) ;
        /*0040*/                   EXIT ;
.L_x_27:
        /*0050*/                   UTMALDG.2D [UR8], [UR32] ;
        /*0060*/               @P1 BRA `(.L_x_27) ;
.L_x_30:
        /*0070*/                   FFMA R20, R9, R13, R20 ;
        /*0080*/                   FFMA R20, R9, R13, R20 ;
        /*0090*/               @P1 BRA `(.L_x_30) ;
        /*00a0*/                   EXIT ;
.L_x_8:
        /*00b0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR19+0x31400], R88 ;
        /*00c0*/              @!P0 BRA `(.L_x_8) ;
        /*00d0*/                   BRA `(.L_x_58) ;
"""
BRX = '        /*0250*/                   BRX R2 -0x260        (*"BRANCH_TARGETS .L_x_10,.L_x_27"*);\n'


def test_instructions_and_where_they_lead() -> None:
    code = instructions(ROLLED)
    assert [each.name for each in code[2:9]] == [
        "LDG.128", "BAR", "LDS.32", "LDS.128", "LDS.64", "LDSM.32", "LDSM.128",
    ]  # fmt: skip
    assert [(i, each.targets) for i, each in enumerate(code) if each.targets] == [
        (1, (13,)), (11, (4,)), (12, (2,)), (15, (15,)),
    ]  # fmt: skip
    assert [each.falls_through for each in code[11:]] == [True, True, True, False, False]
    assert not instructions("nothing of the kind\n")


def test_the_innermost_loop_that_multiplies() -> None:
    assert [len(body) for body in loops(instructions(ROLLED))] == [8, 11, 1]  # the last stands behind the end
    assert main_loop(ROLLED) == {
        "LDS.32": 1, "LDS.128": 1, "LDS.64": 1, "LDSM.32": 1, "LDSM.128": 1, "FFMA": 2, "BRA": 1,
    }  # fmt: skip


def test_a_wait_out_of_the_way_belongs_to_its_loop() -> None:
    found = main_loop(BRX + WAITS)
    assert found == {"SYNCS": 2, "BRA": 4, "HGMMA": 1, "UTMALDG": 1}
    assert main_loop("        /*0000*/                   EXIT ;\n") == {}


# ---- compiled and measured


def code(**loop: int) -> Compiled:
    names = {name.replace("_", "."): n for name, n in loop.items()}
    return Compiled("smem_tiling_cuda", 120, 40, 8192, {"FFMA": 33}, main=Main(1024, 40, 8192, names))


def test_what_nvcc_makes_of_the_chapters_loads() -> None:
    found = of("smem_tiling_cuda", compiled=code(FFMA=32, LDS_32=32, LDS_128=8, LDG_32=2, BAR=2)).figures("compiled")
    assert (found["FMAs a shared load"], found["predicted"], found["FMAs an element"]) == ("0.8", "0.5", "0.5")
    assert found["loads of several elements"] == "8 of 40" and found["LDG"] == "2" and "note" not in found
    # with 40 registers a second block of 1024 threads would not find enough of them either
    assert found["registers"] == "40" and found["occupancy"] == "66.7%" and found["bound by"] == "threads, registers"


def test_packed_fmas_count_twice_and_a_rolled_loop_is_told() -> None:
    found = of("smem_tiling_cuda", compiled=code(FFMA2=16, LDS_32=32, LDSM_128=8)).figures("compiled")
    assert (found["FMAs a shared load"], found["FMAs an element"]) == ("0.8", "0.5")
    assert found["note"].startswith("the loop over k is not unrolled")


def test_without_nvcc() -> None:
    lacking = Compiled("smem_tiling_cuda", 120, note="needs nvcc")
    assert of("smem_tiling_cuda", compiled=lacking).figures("compiled") == {"note": "needs nvcc"}


def test_measured_is_what_the_files_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chapter = table.read(table.RESULTS / "nvidia-h200" / "chapter.csv").set_index("variant")
    found = of("smem_tiling_cuda", "h200").figures("measured")
    assert found["ms"] == f"{chapter.loc['smem_tiling_cuda', 'ms']:.4g}"
    assert of("smem_tiling_cuda").figures("measured") == {"note": "no results"}

    monkeypatch.setattr(table, "RESULTS", tmp_path)
    (tmp_path / "nvidia-h200").mkdir()
    row = {"variant": "naive_cuda", "M": 4096, "N": 4096, "K": 4096, "ms": 276.0, "gflops": 498.0}
    row |= {"dram_bytes": 2.0**34, "l2_bytes": 2.0**36, "fma_pct": 1.5, "tensor_pct": 0.0}
    row |= {"stall_1": "lg_throttle", "stall_1_pct": 56.1, "stall_2": "long_scoreboard", "stall_2_pct": 9.0}
    row |= {"stall_3": None, "stall_3_pct": None, "registers": 32, "occupancy_pct": 99.5, "commit": "abc"}
    pd.DataFrame([row]).to_csv(tmp_path / "nvidia-h200" / "profile.csv", index=False)
    found = of("naive_cuda", "h200").figures("measured")
    assert found["FLOP/byte of DRAM"] == "8" and found["registers"] == "32" and "ms" not in found
    assert found["stalls"] == "lg_throttle 56.1 %, long_scoreboard 9.0 %"
    assert of("coalesced_cuda", "h200").figures("measured") == {"note": "no results"}


# ---- the command


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench.explain", *args], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--variants", "nope"], "error: no variant is called 'nope'; there are cublas"),
        (["--gpu", "gtx-480"], "error: no GPU is called 'gtx-480'; there are rtx-5080, h200, h100, a100"),
        (["--docs", "--gpu", "h100"], "error: --docs writes the ladder's tables"),
    ],
)
def test_a_wrong_option(args: list[str], text: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["explain", *args])
    with pytest.raises(SystemExit) as e:
        explain.main()
    assert e.value.code == 2 and text in capsys.readouterr().err


def test_two_variants_for_one_gpu() -> None:
    done = run("--variants", "smem_tiling_*", "--gpu", "nvidia-h200")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^PREDICTED .*\n\n.*\n.*\n^smem_tiling_cuda .* 8,192: 32 times fewer ", done.stdout, re.MULTILINE)
    assert "\nCOMPILED " in done.stdout and "\nMEASURED " in done.stdout
    made = re.findall(r"^smem_tiling_(cuda|triton) .*?(needs nvcc|0\.5 +0\.5$)", done.stdout, re.MULTILINE)
    assert [name for name, _ in made] == ["cuda", "triton"]
    assert (made[0][1] == "needs nvcc") == (shutil.which("nvcc") is None)


def test_one_variant_in_full() -> None:
    done = run("--variants", "naive_gluon", "--gpu", "rtx-5080", "h200", "--markdown")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Rung 1: one thread computes one output")
    assert re.search(r"\| NVIDIA GeForce RTX 5080 \(sm_120\) +\| NVIDIA H200 \(sm_90\)", done.stdout)
    assert "Next, coalesced_gluon. Rung 2: one thread computes one output, and the lanes" in done.stdout


# ---- docs/ladder.md


def test_predictions_in_the_document_are_those_of_the_tiles() -> None:
    text = explain.LADDER_MD.read_text()
    assert "<!-- explain predicted rtx-5080 -->" in text and "<!-- explain compiled rtx-5080 -->" in text
    assert explain.filled(text, {}) == text, "run make explain ARGS=--docs"


@pytest.mark.parametrize("gpu", ["rtx-5080", "h200"])
def test_the_compilers_read_as_many_elements_as_predicted(gpu: str) -> None:
    made = re.search(
        rf"<!-- explain compiled {gpu} -->.*?(\| variant.*?)\n\n", explain.LADDER_MD.read_text(), re.DOTALL
    )
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in made[1].splitlines())
    figures = [dict(zip(head, row, strict=True)) for row in rows]
    assert [f["variant"] for f in figures if f["predicted"]] == [
        e.variant.name for e in explain.explained(explain.select(explain.LADDER), CARDS[gpu], {}) if e.tiling.stages
    ]
    assert all(f["FMAs an element"] == f["predicted"] and f["spills"] == "0" for f in figures)
    # "ptxas reports 40 registers per thread": of the chapter's architecture
    chapter = next(f for f in figures if f["variant"] == "smem_tiling_cuda")
    assert (chapter["registers"], chapter["shared bytes"]) == ("40" if gpu == "rtx-5080" else "32", "8,192")


@pytest.mark.slow
def test_code_in_the_document_is_what_the_compilers_make() -> None:
    text = explain.LADDER_MD.read_text()
    made = re.search(r"^Triton (\S+); nvcc (\S+)\.$", text, re.MULTILINE)
    here = explain.compilers()
    if made[0] != here:
        pytest.skip(f"the document has {made[0]} and here is {here}")
    found = read_all([90, 120], explain.LADDER)
    assert explain.filled(text, {(c.variant, c.arch): c for c in found}) == text, "run make explain ARGS=--docs"
