#!/bin/sh
# Compiles the kernels for AArch64 and runs their check in an emulator.
#
#   check_aarch64.sh [BUILD_FOLDER]     needs g++-aarch64-linux-gnu and qemu-user
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/build/aarch64}
compiler=${CXX:-aarch64-linux-gnu-g++}
mkdir -p "$out"
cd "$root/native/kernels"
flags="-std=c++17 -O3 -ffp-contract=off -fno-math-errno -Wall -Wextra -Wno-psabi -Wno-unknown-pragmas -I."
for isa in generic neon; do
    extra=""
    [ $isa = neon ] && extra="-DSF_NEON -march=armv8.2-a+dotprod"
    for source in isa sample; do
        $compiler $flags $extra -DSF_ISA=$isa -c $source.cc -o "$out/$source.$isa.o"
    done
done
shared=$(ls ./*.cc | grep -v -e isa.cc -e sample.cc)
$compiler $flags -static -pthread $shared \
    ../checks/*.cc ../text/*.cc "$out"/*.o -o "$out/native_check"
qemu-aarch64 -cpu max "$out/native_check"
