#!/bin/sh
# No kernel object may define a weak or unique symbol. Each kernel source is compiled once per instruction set; a weak
# function in it (a template of the standard library, say) is merged by the linker with those of all other files, and
# the copy that it keeps may hold instructions that this CPU does not have.
#
#   check_kernel_symbols.sh BUILD_FOLDER     exit 1: a symbol was found, or there were no kernel objects to look at
set -eu
objects=$(find "$1" -path '*/kernels_*.dir/*.o')
if [ -z "$objects" ]; then
    echo "check_kernel_symbols: no kernel objects under $1" >&2
    exit 1
fi
for object in $objects; do
    if nm -C "$object" | grep -E '^[0-9a-f]* +[VWu] '; then
        echo "check_kernel_symbols: weak symbols in $object" >&2
        exit 1
    fi
done
echo "check_kernel_symbols: $(echo "$objects" | wc -l) objects, no weak symbols"
