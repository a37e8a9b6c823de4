"""No object file may hold instructions of another instruction set than its own: they would end a process on a CPU
that lacks them.

    check_kernel_objects.py FOLDER...     build folders; exit status 1: an object is wrong, or there is none

Two faults lead there. A compile option too many; so every instruction of an x86-64 object is looked at. And weak
symbols: each kernel source is compiled once per instruction set, and a weak function in it (a template of the standard
library, say) is merged by the linker with those of all other files: the copy that it keeps serves every CPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# What an instruction may begin with before its encoding is told apart: segment and address size.
ENCODING = re.compile(r"^(?:26 |2e |36 |3e |64 |65 |67 )*(62|c4|c5)")
# Legacy encodings that not every x86-64 has: SSE3 and later. (An old CPU reads `tzcnt` as `bsf`, and it is used so.)
BEYOND_SSE2 = re.compile(r"^(?:66 |f2 |f3 |4[0-9a-f] )*0f (?:38|3a) ")
NAMED_BEYOND_SSE2 = re.compile(
    r"popcnt|lzcnt|cmpxchg16b|h(?:add|sub)p[sd]|addsubp[sd]|mov(?:s[hl]|d)dup|lddqu|xsave|xgetbv"
)
ONES_OF_AVX = re.compile(r"popcnt")  # every CPU with AVX has it
# What the vector encodings hold beside AVX2, FMA and F16C; and beside AVX-512 F, BW, VL, DQ, VNNI and BF16.
BEYOND_AVX2 = re.compile(r"vpdp|vpmadd52|vgf2p8|vaes|vpclmul|vsha|vsm[34]|vbcstne|vcvtne|[^v]")
BEYOND_AVX512 = re.compile(
    r"vp(?:erm[it]2|erm|multishiftq)b$|vp(?:compress|expand)[bw]|vpsh[lr]d|vpopcnt|vpmadd52|vpconflict|vplzcnt"
    r"|vpbroadcastm|vgf2p8|vaes|vpclmul|vp2intersect|v(?!cvtps2ph)\w+[ps]h$|[^vk]"
)
DOT_PRODUCT = "vpdpbusd"


def instructions(path: Path) -> Iterator[tuple[str, str, str]]:
    """(encoding, bytes, name) of each; the encoding is legacy, vex or evex."""
    listing = subprocess.run(["objdump", "-dw", path], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        parts = line.split("\t")
        if len(parts) < 3:
            continue
        words = [w for w in parts[2].split() if not w.startswith("{")]
        while len(words) > 1 and words[0] in ("rep", "repz", "repnz", "lock", "data16", "cs", "ds", "notrack", "bnd"):
            words.pop(0)
        found = ENCODING.match(parts[1])
        encoding = "legacy" if found is None else "evex" if found[1] == "62" else "vex"
        yield encoding, parts[1], words[0] if words else ""


def is_foreign(build: str, encoding: str, code: str, name: str) -> bool:
    """Whether this instruction has no place in a build ("" for what runs on every x86-64)."""
    vector = build in ("avx2", "avxvnni", "avx512")
    if encoding == "legacy":
        beyond = BEYOND_SSE2.match(code) or NAMED_BEYOND_SSE2.match(name)
        return bool(beyond) and not (vector and ONES_OF_AVX.match(name))
    if encoding == "evex":
        return build != "avx512" or bool(BEYOND_AVX512.match(name))
    if build == "avx512" and name.startswith("k"):
        return False
    if build == "avxvnni" and name == DOT_PRODUCT:
        return False
    return not vector or bool(BEYOND_AVX2.match(name))


def is_x86_64(path: Path) -> bool:
    """By the machine's number in the ELF header."""
    return path.read_bytes()[18:20] == b"\x3e\x00"


def faults_of(path: Path, build: str | None) -> list[str]:
    """What is wrong with an object of the kernels (`build`: generic, avx2, ...) or of anything else (None)."""
    found = []
    if build is not None:
        symbols = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
        found = [f"weak symbol {s}" for s in re.findall(r"^[0-9a-f]* +[VWu] (.*)$", symbols, re.MULTILINE)]
    if not is_x86_64(path):
        return found
    names, used = set(), set()
    for encoding, code, name in instructions(path):
        used.add((encoding, name))
        if is_foreign(build or "", encoding, code, name):
            names.add(f"{name} ({encoding})")
    found += [f"instruction {name}" for name in sorted(names)]
    # The products are in isa.cc, and the point of this build.
    if build == "avxvnni" and "isa" in path.name and ("vex", DOT_PRODUCT) not in used:
        found.append(f"no {DOT_PRODUCT} in the encoding of AVX-VNNI")
    return found


def main(folders: list[str]) -> int:
    objects = sorted(p for folder in folders for p in Path(folder).rglob("*.o") if "_evex.dir" not in str(p))
    kernels = 0
    failed = False
    for path in objects:
        build = re.search(r"kernels_(\w+)\.dir/", str(path))
        kernels += build is not None
        for fault in faults_of(path, build[1] if build else None):
            print(f"{path}: {fault}", file=sys.stderr)
            failed = True
    if not kernels:
        print(f"check_kernel_objects: no kernel objects under {' '.join(folders)}", file=sys.stderr)
        return 1
    if not failed:
        print(f"check_kernel_objects: {len(objects)} objects, {kernels} of kernels; each within its instruction set")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
