#!/bin/sh
# Builds native/checks/ and runs it: every build of the kernels against scalar code, thread pool, tokenizer; no Python.
#
#   check_native.sh             this machine; what `make install` compiled is used, where it is there
#   check_native.sh aarch64     cross-compiled, in an emulator; needs g++-aarch64-linux-gnu and qemu-user. Compiles the
#                               whole extension, too, with the Python headers of this machine: they differ in nothing
#                               that it uses
#   check_native.sh address     this machine, with the sanitizers for memory and undefined behaviour
#   check_native.sh thread      this machine, with the sanitizer for races
#
# Exit status 3: the headers of PYTHON cannot be used for aarch64.
# PYTHON is an interpreter with nanobind; cmake and ninja come from `make install`, or from the path.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/build/tools
[ -d "$tools" ] && export PATH="$tools/bin:$PATH" PYTHONPATH="$tools"
python=${PYTHON:-$root/.venv/bin/python}
kind=${1:-host}
out=${CHECK_FOLDER:-$root/build}/check-$kind

set -- -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)"
case $kind in
host)
    # The same objects as in the extension: only the checks are left to compile.
    for built in "$root"/build/cp*; do
        [ -n "${CHECK_FOLDER:-}" ] || ! grep -qsx "Python_EXECUTABLE:PATH=$python" "$built/CMakeCache.txt" || out=$built
    done
    ;;
address) set -- "$@" -DSF_OPTIMIZE=-O1 -DCMAKE_CXX_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover=all -g1" ;;
thread) set -- "$@" -DSF_OPTIMIZE=-O1 -DCMAKE_CXX_FLAGS="-fsanitize=thread -g1" ;;
aarch64)
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    # Debian's pyconfig.h includes that of the target, from libpython3-dev:arm64 or not at all.
    header=$(sed -n 's/.*<\(aarch64-linux-gnu[^>]*\)>.*/\1/p' "$include/pyconfig.h" | head -n 1)
    if [ -n "$header" ] && [ ! -e "$(dirname "$include")/$header" ]; then
        echo "check_native: $include/pyconfig.h wants $header, which is not here; use a Python that is not Debian's" >&2
        exit 3
    fi
    set -- "$@" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DPython_INCLUDE_DIR="$include" \
        -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static
    ;;
*) echo "check_native: there is no '$kind'" >&2 && exit 2 ;;
esac
cmake -S "$root/native" -B "$out" -G Ninja "$@" --log-level=WARNING
if [ "$kind" = aarch64 ]; then
    cmake --build "$out" --target _native native_check
    # The first CPU has no dot products: what is compiled for every AArch64 must run there, and be chosen.
    qemu-aarch64 -cpu cortex-a57 "$out/native_check"
    qemu-aarch64 -cpu max "$out/native_check" neon
else
    cmake --build "$out" --target native_check
    "$out/native_check"
fi
