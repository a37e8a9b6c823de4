#!/bin/sh
# Environments of the clients that tests/clients/ takes on tours: one in build/clients-env/ for each list of pins in
# tests/clients/environments/. One that is there and made from the same list is kept.
#
#   sh scripts/client_envs.sh [PYTHON]      default: .venv/bin/python
#
# uv unpacks them in seconds, where pip needs half a minute; where uv cannot be had, or finds no index, pip does it.
set -eu
cd "$(dirname "$0")/.."
python=$(command -v "${1:-.venv/bin/python}")
envs=build/clients-env
pip="$python -m pip --disable-pip-version-check"

install() { # ENVIRONMENT LIST
    if [ -x "$envs/uv/bin/uv" ] && "$envs/uv/bin/uv" pip install -q --no-deps --python "$1/bin/python" -r "$2"; then
        return
    fi
    $pip --python "$1/bin/python" install -q --no-deps --no-compile -r "$2"
}

mkdir -p "$envs"
for list in tests/clients/environments/*.txt; do
    env=$envs/$(basename "$list" .txt)
    if cmp -s "$list" "$env/made-from.txt"; then
        continue
    fi
    echo "-- making $env"
    [ -x "$envs/uv/bin/uv" ] || $pip install -q --target "$envs/uv" -c constraints.txt uv || echo "-- no uv: pip it is"
    rm -rf "$env"
    "$python" -m venv --without-pip "$env"
    install "$env" "$list"
    cp "$list" "$env/made-from.txt"
done
