#!/usr/bin/env bash
# Makes the kernel's PTX, as checked in, from copy_ranges.cu: make-ptx.sh [FILE]
# Needs nvcc 13. Its lowest target is sm_75 and its PTX 9.0, but nothing in the kernel is newer than
# PTX 7.0 and sm_70: with those in its header, drivers from CUDA 11.0 and devices from Volta on take it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/../resources/io/umbp/cuda/copy_ranges.ptx}
digest=$(sha256sum < "$here/copy_ranges.cu" | cut -d' ' -f1)

nvcc -ptx -arch=compute_75 -o "$out" "$here/copy_ranges.cu"
sed -i -e 's/^\.version .*/.version 7.0/' -e 's/^\.target .*/.target sm_70/' \
  -e "1i // Made by make-ptx.sh from copy_ranges.cu, SHA-256 $digest" "$out"
