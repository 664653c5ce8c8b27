#!/bin/sh
# build.sh JNI_LIBRARY OUTPUT JAVA_HOME
# Builds the fake driver, with every function that JCuda's JNI library wants: those that are not
# written here count the call and return "not supported", because a missing symbol ends the JVM.
set -eu
jni_library=$1 output=$2 java_home=$3
here=$(cd "$(dirname "$0")" && pwd)

for tool in gcc nm awk; do
  if ! command -v "$tool" > /dev/null; then
    echo "the fake CUDA driver is left out: no $tool" >&2
    [ "${CI:-}" = true ] && exit 1
    exit 0
  fi
done
if [ -f "$output" ] && [ -z "$(find "$here" -newer "$output" -type f)" ]; then
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  echo 'int not_written(const char *function, int *slot);'
  nm -D --undefined-only "$jni_library" | awk '$2 ~ /^cu[A-Z]/ {
    printf "__attribute__((weak, visibility(\"default\"))) int %s(void) {", $2
    printf " static int slot; return not_written(\"%s\", &slot); }\n", $2
  }'
} > "$work/not_written.c"
mkdir -p "$(dirname "$output")"
gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -fvisibility=hidden -fPIC -shared -pthread \
  -Wl,-soname,libcuda.so.1 -I"$java_home/include" -I"$java_home/include/linux" \
  -o "$work/libcuda.so.1" "$here"/*.c "$work/not_written.c" -ldl
mv "$work/libcuda.so.1" "$output"
