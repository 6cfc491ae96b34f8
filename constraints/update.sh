#!/bin/sh
# Writes constraints/py311.txt, py312.txt and py313.txt from setup.cfg: `make constraints`.
#
# uv reads package metadata only, so that no package is installed and no other Python is needed.
# The three files hold the same versions wherever the packages allow it: what is tested on one
# Python is what runs on the others.
set -eu
: "${TORCH:?}" "${UV:?}"
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

printf 'setuptools>=77\ntorch==%s\n' "$TORCH" >"$work/also.in"
: >"$work/py310.raw"
previous=310
for version in 311 312 313; do
    "$UV" pip compile setup.cfg "$work/also.in" --quiet --extra data --extra test --extra docs --extra lint --universal --fork-strategy fewest \
        --python-version "3.${version#3}" --constraints "$work/py$previous.raw" \
        --no-annotate --no-header --system-certs --output-file "$work/py$version.raw"
    {
        echo "# Written by \`make constraints\` from setup.cfg; do not edit."
        # What torch's CUDA build needs it pins itself, and its CPU build needs none of it.
        grep -Ev '^(cuda|nvidia|triton)' "$work/py$version.raw" | sed "s/^torch==.*/torch==$TORCH/"
    } >"$work/py$version.txt"
    previous=$version
done
for version in 311 312 313; do
    mv "$work/py$version.txt" "constraints/py$version.txt"
    echo "constraints/py$version.txt: $(grep -c == "constraints/py$version.txt") pins"
done
