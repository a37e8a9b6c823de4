#!/bin/sh
# Compiles the native code with sanitizers and runs its checks (native/checks): all builds of the kernels that this CPU
# has, the thread pool, the sampler, the tokenizer.
#
#   check_sanitizers.sh [address | thread]...     both if none is named; `address` includes undefined behaviour
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
compiler=${CXX:-g++}
cd "$root/native"
warnings="-Wall -Wextra -Wno-psabi -Wno-unknown-pragmas -Wno-uninitialized -Wno-maybe-uninitialized"
common="-std=c++17 -O1 -g1 -fno-omit-frame-pointer -ffp-contract=off -fno-math-errno -Ikernels $warnings"
shared=$(ls kernels/*.cc checks/*.cc text/*.cc | grep -v -e isa.cc -e sample.cc)
avx2="-DSF_AVX2 -mavx2 -mfma -mf16c"
avx512="-DSF_AVX512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mavx2 -mfma -mf16c"

# Each line: an object and the flags it needs.
jobs() {
    for source in $shared; do echo "$out/$(basename "$source").o -c $source"; done
    for source in isa sample; do
        echo "$out/$source.generic.o -DSF_ISA=generic -c kernels/$source.cc"
        [ "$(uname -m)" = x86_64 ] || continue
        echo "$out/$source.avx2.o -DSF_ISA=avx2 $avx2 -c kernels/$source.cc"
        echo "$out/$source.avxvnni.o -DSF_ISA=avxvnni $avx2 -DSF_AVXVNNI -mavxvnni -c kernels/$source.cc"
        echo "$out/$source.avx512.o -DSF_ISA=avx512 $avx512 -c kernels/$source.cc"
    done
}

for sanitizer in ${*:-address thread}; do
    out=$root/build/sanitizers/$sanitizer
    case $sanitizer in
    address) flags="-fsanitize=address,undefined -fno-sanitize-recover=all" ;;
    thread) flags="-fsanitize=thread" ;;
    *) echo "check_sanitizers: there is no '$sanitizer'" >&2 && exit 2 ;;
    esac
    rm -rf "$out" && mkdir -p "$out"
    jobs | xargs -P "$(nproc)" -d '\n' -n 1 sh -c "$compiler $common $flags -o \$0 || exit 255"
    $compiler $flags -pthread "$out"/*.o -o "$out/kernel_check"
    echo "-- $sanitizer"
    "$out/kernel_check"
done
