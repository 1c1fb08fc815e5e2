#!/bin/sh
# unpack.sh ROOT: put ROOT/pieces/1, 2, ... together and, with ROOT/project in place, make the trees and the models.
set -eu
root=$1
cd "$root"
find pieces -type f | sort -V | xargs cat | tar -xJ
rm -r pieces
cp -r project/. .
PYTHONPATH="$root/tool:$root/site" python3 proof/trees.py "$root" &
trees=$!
PYTHONPATH="$root/site" python3 proof/make_models.py "$root/models" >models.log 2>&1 &
models=$!
wait "$trees"
wait "$models"
ls "$root/trees" "$root/models"
