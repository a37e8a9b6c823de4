"""scripts/check_kernel_objects.py finds what it is there to find. `make lint` runs it on what was built."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_kernel_objects.py"
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="it looks for instructions of x86-64")

ADD = "void f(float* a, const float* b) { for (int i = 0; i < 64; i++) a[i] += b[i]; }"
SHIFT = "unsigned long f(unsigned long a, int n) { return a << n; }"
COUNT = "int f(unsigned a) { return __builtin_popcount(a); }"
ROUND = "float f(float a) { return __builtin_floorf(a); }"
WEAK = "template <class T> __attribute__((noinline)) T g(T a) { return a * a; } int f(int a) { return g(a); }"
DOTS = """#include <immintrin.h>
__m256i f(__m256i a, __m256i b, __m256i c) { return _mm256_%s(a, b, c); }"""
BYTES = """#include <immintrin.h>
__m512i f(__m512i a, __m512i b) { return _mm512_permutexvar_epi8(a, b); }"""
AVX512 = "-mavx512f -mavx512bw -mavx512vl -mavx512vnni"


def check(folder: Path, source: str, flags: str) -> tuple[int, str]:
    folder.mkdir(parents=True)
    (folder / "isa.cc").write_text(source)
    target = str(folder / "isa.cc.o")
    subprocess.run(["g++", "-O3", *flags.split(), "-c", str(folder / "isa.cc"), "-o", target], check=True)
    done = subprocess.run([sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("build", "source", "flags"),
    [
        ("generic", ADD, ""),
        ("avx2", ADD, "-mavx2 -mfma"),
        ("avx2", COUNT, "-mavx2"),
        ("avxvnni", DOTS % "dpbusd_avx_epi32", "-mavx2 -mavxvnni"),
        ("avx512", ADD, f"{AVX512} -mprefer-vector-width=512"),
        ("avx512", DOTS % "dpbusd_epi32", AVX512),
    ],
)
def test_what_belongs_to_a_build(tmp_path: Path, build: str, source: str, flags: str) -> None:
    assert check(tmp_path / f"kernels_{build}.dir", source, flags) == (0, "")


@pytest.mark.parametrize(
    ("build", "source", "flags", "said"),
    [
        ("generic", ADD, "-mavx", "instruction vmovups (vex)"),
        ("generic", COUNT, "-mpopcnt", "instruction popcnt (legacy)"),
        ("generic", ROUND, "-msse4.1 -fno-math-errno", "instruction roundss (legacy)"),
        ("avx2", ADD, f"{AVX512} -mprefer-vector-width=512", "(evex)"),
        ("avx2", DOTS % "dpbusd_avx_epi32", "-mavx2 -mavxvnni", "instruction vpdpbusd (vex)"),
        ("avx2", SHIFT, "-mavx2 -mbmi2", "instruction shlx (vex)"),
        ("avxvnni", DOTS % "dpbusd_epi32", AVX512, "instruction vpdpbusd (evex)"),
        ("avxvnni", ADD, "-mavx2", "no vpdpbusd in the encoding of AVX-VNNI"),
        ("avx512", DOTS % "dpbusd_avx_epi32", "-mavx2 -mavxvnni", "instruction vpdpbusd (vex)"),
        ("avx512", BYTES, f"{AVX512} -mavx512vbmi", "instruction vpermb (evex)"),
        ("avx512", WEAK, AVX512, "weak symbol int"),
    ],
)
def test_what_does_not(tmp_path: Path, build: str, source: str, flags: str, said: str) -> None:
    code, message = check(tmp_path / f"kernels_{build}.dir", source, flags)
    assert code == 1
    assert said in message


def test_what_every_cpu_runs_is_plain(tmp_path: Path) -> None:
    check(tmp_path / "kernels_generic.dir", ADD, "")
    code, message = check(tmp_path / "program.dir", ADD, "-mavx2")
    assert code == 1
    assert "no kernel objects" in message
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "program.dir/isa.cc.o: instruction vmovups (vex)" in done.stderr
