#!/bin/sh
# Checks what the build needs and pip would only report after a page of noise. One sentence and the remedy for each.
#
#   preflight.sh PYTHON CXX        exit 0: all there; exit 1: something is missing, said on stderr
set -u
python=$1
cxx=$2

fail() {
    printf 'sixfold: %s\n' "$1" >&2
    printf '         %s\n' "$2" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    fail "there is no '$python' here." \
         "Install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3-venv python3-dev), or name one: make PYTHON=/path/to/python3"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "'$python' is $("$python" -V 2>&1); Sixfold needs Python 3.11 or newer." \
         "Name a newer one: make PYTHON=python3.12"

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "'$python' has no venv module." \
         "Debian, Ubuntu: apt-get install python3-venv"

"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    fail "Python.h, the C header of '$python', is missing." \
         "Debian, Ubuntu: apt-get install python3-dev; Fedora: dnf install python3-devel"

# CXX may hold a launcher ("ccache g++"), so every word must be a command.
for word in $cxx; do
    command -v "$word" >/dev/null 2>&1 ||
        fail "there is no C++ compiler '$word' here." \
             "Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; or name one: make CXX=clang++"
done
