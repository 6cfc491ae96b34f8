#!/bin/sh
# Writes constraints/py311.txt, py312.txt and py313.txt from setup.cfg: `make constraints`. Then locks
# what hosts install, host-tpu-py312.txt and host-gpu-py312.txt, to the versions in py312.txt.
#
# uv reads package metadata only, so that no package is installed and no other Python is needed.
# The three files hold the same versions wherever the packages allow it: what is tested on one
# Python is what runs on the others. JAX has a newer release for Python 3.12 than for 3.11.
set -eu
: "${TORCH:?}" "${UV:?}" "${UV_VERSION:?}"
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

printf 'setuptools>=77\ntorch==%s\n' "$TORCH" >"$work/also.in"
: >"$work/py310.same"
previous=310
for version in 311 312 313; do
    "$UV" pip compile setup.cfg "$work/also.in" --quiet --extra data --extra test --extra docs --extra lint --universal --fork-strategy fewest \
        --python-version "3.${version#3}" --constraints "$work/py$previous.same" \
        --no-annotate --no-header --system-certs --output-file "$work/py$version.raw"
    {
        echo "# Written by \`make constraints\` from setup.cfg; do not edit."
        # What torch's CUDA build needs it pins itself, and its CPU build needs none of it.
        grep -Ev '^(cuda|nvidia|triton)' "$work/py$version.raw" | sed "s/^torch==.*/torch==$TORCH/"
    } >"$work/py$version.txt"
    grep -Ev '^(jax|jaxlib|libtpu|flax)==' "$work/py$version.raw" >"$work/py$version.same"
    previous=$version
done
for version in 311 312 313; do
    mv "$work/py$version.txt" "constraints/py$version.txt"
    echo "constraints/py$version.txt: $(grep -c == "constraints/py$version.txt") pins"
done

# The Python of all hosts, and every extra that a run on hosts may import, as wheels: nothing is built
# there. libtpu needs glibc 2.31.
host=312
for accelerator in tpu gpu; do
    lock=host-$accelerator-py$host.txt
    {
        echo "# Written by \`make constraints\` from setup.cfg; do not edit. Hosts install it with --require-hashes."
        "$UV" pip compile setup.cfg --quiet --extra "$accelerator" --extra fast --extra gcp --extra hub --extra mlperf \
            --python-version "3.${host#3}" --python-platform x86_64-manylinux_2_31 --generate-hashes \
            --constraints "constraints/py$host.txt" --no-annotate --no-header --system-certs
    } >"$work/$lock"
    mv "$work/$lock" "constraints/$lock"
    echo "constraints/$lock: $(grep -c == "constraints/$lock") pins"
done

# What installs them there.
{
    echo "# Written by \`make constraints\`; do not edit."
    echo "uv==$UV_VERSION" | "$UV" pip compile - --quiet --generate-hashes --no-header --no-annotate --system-certs
} >"$work/host-uv.txt"
mv "$work/host-uv.txt" constraints/host-uv.txt
