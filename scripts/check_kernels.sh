#!/bin/sh
# Builds native/checks/ and runs it: every build of the kernels that the machine has, against scalar code.
#
#   check_kernels.sh            this machine
#   check_kernels.sh aarch64    cross-compiled, in an emulator; needs g++-aarch64-linux-gnu and qemu-user. Compiles the
#                               whole extension, too, with the Python headers of this machine: they differ in nothing
#                               that it uses
#
# PYTHON is an interpreter with nanobind; cmake and ninja come from `make install`, or from the path.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/build/tools
[ -d "$tools" ] && export PATH="$tools/bin:$PATH" PYTHONPATH="$tools"
python=${PYTHON:-$root/.venv/bin/python}
machine=${1:-host}
out=${SIXFOLD_CHECK_FOLDER:-$root/build}/check-$machine

set -- -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)"
if [ "$machine" = aarch64 ]; then
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    set -- "$@" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DPython_INCLUDE_DIR="$include" \
        -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static
fi
cmake -S "$root/native" -B "$out" -G Ninja "$@" --log-level=WARNING
if [ "$machine" = aarch64 ]; then
    cmake --build "$out" --target _native kernel_check
    # The first CPU has no dot products: what is compiled for every AArch64 must run there, and be chosen.
    qemu-aarch64 -cpu cortex-a57 "$out/kernel_check"
    qemu-aarch64 -cpu max "$out/kernel_check" neon
else
    cmake --build "$out" --target kernel_check
    "$out/kernel_check"
fi
